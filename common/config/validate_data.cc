#include "common/config/validate_data.h"

#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"

namespace starling::config {
namespace {

constexpr uint32_t kThreadsMax = 64;
constexpr uint32_t kImageSideMax = 8192;

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

absl::Status CheckText(const char* what, const std::string& text) {
  if (text.find('\0') == std::string::npos) return absl::OkStatus();
  return Invalid(absl::StrCat(what, ": expected a path without a zero byte"));
}

// Source: Text or Tokens.
template <typename Source>
absl::Status CheckWindows(const char* what, const Source& source) {
  STARLING_RETURN_IF_ERROR(CheckText(what, source.path()));
  if (source.context() < 1)
    return Invalid(absl::StrCat(what, ": expected a context of at least 1"));
  const double end = source.end() == 0 ? 1 : source.end();
  if (source.begin() >= 0 && source.begin() < end && end <= 1) return absl::OkStatus();
  return Invalid(
      absl::StrCat(what, ": expected 0 <= begin < end <= 1, got ", source.begin(), " and ", end));
}

absl::Status CheckCsv(const char* what, const DataSource::Csv& csv) {
  STARLING_RETURN_IF_ERROR(CheckText(what, csv.path()));
  if (csv.separator().size() > 1)
    return Invalid(absl::StrCat(what, ".csv: expected a separator of one character"));
  if (csv.classes_size() > 0 && csv.label_type() == DataSource::Csv::LABEL_NUMBER) {
    return Invalid(
        absl::StrCat(what, ".csv: classes and labelType number: expected one of the two"));
  }
  const std::set<std::string> names(csv.classes().begin(), csv.classes().end());
  if (names.size() != static_cast<size_t>(csv.classes_size())) {
    return Invalid(absl::StrCat(what, ".csv: expected classes of different names"));
  }
  if (csv.holdout_fraction() >= 0 && csv.holdout_fraction() < 1) return absl::OkStatus();
  return Invalid(absl::StrCat(what, ": holdout fraction: expected at least 0 and less than 1, got ",
                              csv.holdout_fraction()));
}

absl::Status CheckWebDataset(const char* what, const DataSource::WebDataset& web) {
  for (const std::string& path : web.shards()) STARLING_RETURN_IF_ERROR(CheckText(what, path));
  STARLING_RETURN_IF_ERROR(CheckText(what, web.classes()));
  if (web.shards().empty())
    return Invalid(absl::StrCat(what, ".webdataset: expected at least one shard"));
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
    case DataSource::kIdx:
      STARLING_RETURN_IF_ERROR(CheckText(what, source.idx().images()));
      return CheckText(what, source.idx().labels());
    case DataSource::kCsv: return CheckCsv(what, source.csv());
    case DataSource::kCifar:
      for (const std::string& path : source.cifar().files())
        STARLING_RETURN_IF_ERROR(CheckText(what, path));
      return source.cifar().files_size() > 0
                 ? absl::OkStatus()
                 : Invalid(absl::StrCat(what, ".cifar: expected at least one file"));
    case DataSource::kWebdataset: return CheckWebDataset(what, source.webdataset());
    case DataSource::kText: return CheckWindows(what, source.text());
    case DataSource::kTokens:
      if (source.tokens().vocabulary() < 2) {
        return Invalid(absl::StrCat(what, ".tokens: expected a vocabulary of at least 2"));
      }
      return CheckWindows(what, source.tokens());
    default: return absl::OkStatus();
  }
}

}  // namespace

absl::Status CheckData(const JobSpec& spec) {
  if (spec.train().source_case() == DataSource::SOURCE_NOT_SET) {
    return Invalid("data.train: expected idx, cifar, webdataset, csv, text, tokens or counter");
  }
  STARLING_RETURN_IF_ERROR(CheckSource("data.train", spec.train()));
  STARLING_RETURN_IF_ERROR(CheckSource("data.test", spec.test()));
  if (spec.loading().threads() > kThreadsMax) {
    return Invalid(absl::StrCat("data.loading.threads: expected 1 to ", kThreadsMax, ", got ",
                                spec.loading().threads()));
  }
  return absl::OkStatus();
}

}  // namespace starling::config
