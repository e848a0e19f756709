// CheckData: how the keys of a job's data go together.
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/data_section.h"

namespace starling::config {
namespace {

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

// Source: Text or Tokens.
template <typename Source>
absl::Status CheckWindows(const std::string& what, const Source& source) {
  const double end = source.end() == 0 ? 1 : source.end();
  if (source.begin() < end) return absl::OkStatus();
  return Invalid(absl::StrCat(what, ".end: expected more than begin, which is ", source.begin(),
                              ", got ", end));
}

absl::Status CheckCsv(const char* what, const DataSource::Csv& csv) {
  if (csv.separator().size() > 1) {
    return Invalid(absl::StrCat(what, ".csv.separator: expected one character, got \"",
                                absl::CHexEscape(csv.separator().substr(0, 40)), "\""));
  }
  if (csv.classes_size() > 0 && csv.label_type() == DataSource::Csv::LABEL_NUMBER) {
    return Invalid(
        absl::StrCat(what, ".csv: classes and labelType number: expected one of the two"));
  }
  const std::set<std::string> names(csv.classes().begin(), csv.classes().end());
  if (names.size() != static_cast<size_t>(csv.classes_size())) {
    return Invalid(absl::StrCat(what, ".csv: expected classes of different names"));
  }
  if (csv.part() == DataSource::Csv::PART_ALL || csv.holdout_fraction() > 0) {
    return absl::OkStatus();
  }
  return Invalid(
      absl::StrCat(what, ".csv.part: with part train or holdout, holdoutFraction must be above 0"));
}

absl::Status CheckWebDataset(const char* what, const DataSource::WebDataset& web) {
  if (web.image().empty() || web.label().empty() ||
      absl::AsciiStrToLower(web.image()) == absl::AsciiStrToLower(web.label())) {
    return Invalid(absl::StrCat(what,
                                ".webdataset: expected different names for image and label, got \"",
                                web.image(), "\" and \"", web.label(), "\""));
  }
  const bool whole = web.height() == 0 && web.width() == 0;
  if (whole || (web.height() >= 1 && web.height() <= kImageSideMax && web.width() >= 1 &&
                web.width() <= kImageSideMax)) {
    return absl::OkStatus();
  }
  return Invalid(absl::StrCat(what, ".webdataset: expected sides of 1 to ", kImageSideMax,
                              " pixels, got ", web.height(), " and ", web.width()));
}

absl::Status CheckSource(const char* what, const DataSource& source) {
  switch (source.source_case()) {
    case DataSource::kCsv: return CheckCsv(what, source.csv());
    case DataSource::kWebdataset: return CheckWebDataset(what, source.webdataset());
    case DataSource::kText: return CheckWindows(absl::StrCat(what, ".text"), source.text());
    case DataSource::kTokens: return CheckWindows(absl::StrCat(what, ".tokens"), source.tokens());
    default: return absl::OkStatus();
  }
}

absl::Status CheckNormalize(const Normalize& normalize) {
  for (const double std : normalize.std()) {
    if (!(std > 0))
      return Invalid(absl::StrCat("data.normalize.std: expected numbers above 0, got ", std));
  }
  if (normalize.mean_size() == normalize.std_size() && !normalize.mean().empty())
    return absl::OkStatus();
  return Invalid(
      absl::StrCat("data.normalize.std: expected as many numbers as mean, at least one; got ",
                   normalize.std_size(), " and ", normalize.mean_size()));
}

}  // namespace

absl::Status CheckData(const JobSpec& spec) {
  STARLING_RETURN_IF_ERROR(CheckSource("data.train", spec.train()));
  STARLING_RETURN_IF_ERROR(CheckSource("data.test", spec.test()));
  return spec.has_normalize() ? CheckNormalize(spec.normalize()) : absl::OkStatus();
}

}  // namespace starling::config
