#include "worker/data/csv_columns.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

constexpr size_t kNamesShown = 20;

std::string Shown(const std::vector<std::string>& names) {
  std::vector<std::string> first;
  for (size_t i = 0; i < std::min(kNamesShown, names.size()); ++i)
    first.push_back(absl::CHexEscape(names[i].substr(0, 40)));
  return absl::StrCat(absl::StrJoin(first, ", "), names.size() > kNamesShown ? ", ..." : "");
}

// Assigns kinds to columns, at most one each.
class Resolver {
 public:
  explicit Resolver(const std::vector<std::string>& names) : names_(names), taken_(names.size()) {
    for (const std::string& name : names) out_.columns.push_back({.name = name});
  }

  absl::Status Take(const std::string& name, CsvColumns::Kind kind) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("no column \"", name, "\"; the file has ",
                                                     names_.size(), ": ", Shown(names_)));
    }
    if (std::find(found + 1, names_.end(), name) != names_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("two columns are called \"", name, "\""));
    }
    const size_t i = found - names_.begin();
    if (taken_[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("column \"", name, "\" is named twice among label, features and ignore"));
    }
    TakeAt(i, kind);
    return absl::OkStatus();
  }

  void TakeAt(size_t i, CsvColumns::Kind kind) {
    taken_[i] = true;
    CsvColumns::Column& column = out_.columns[i];
    column.kind = kind;
    if (kind == CsvColumns::Kind::kFeature) column.place = out_.features++;
    if (kind == CsvColumns::Kind::kLabel) column.place = out_.labels++;
  }

  void TakeRest(CsvColumns::Kind kind) {
    for (size_t i = 0; i < names_.size(); ++i) {
      if (!taken_[i]) TakeAt(i, kind);
    }
  }

  const CsvColumns& out() const { return out_; }

 private:
  const std::vector<std::string>& names_;
  std::vector<bool> taken_;
  CsvColumns out_;
};

}  // namespace

absl::StatusOr<CsvColumns> CsvColumns::Resolve(const DataSource::Csv& csv,
                                               const std::vector<std::string>& names) {
  Resolver resolver(names);
  for (const std::string& name : csv.ignore())
    STARLING_RETURN_IF_ERROR(resolver.Take(name, Kind::kIgnored));
  for (const std::string& name : csv.label())
    STARLING_RETURN_IF_ERROR(resolver.Take(name, Kind::kLabel));
  if (csv.label().empty()) STARLING_RETURN_IF_ERROR(resolver.Take(names.back(), Kind::kLabel));
  for (const std::string& name : csv.features())
    STARLING_RETURN_IF_ERROR(resolver.Take(name, Kind::kFeature));
  resolver.TakeRest(csv.features().empty() ? Kind::kFeature : Kind::kIgnored);
  CsvColumns out = resolver.out();
  if (out.features == 0) return absl::InvalidArgumentError("no column is left for the features");
  if (out.labels > 1 && csv.label_type() == DataSource::Csv::LABEL_CLASS) {
    return absl::InvalidArgumentError(
        absl::StrCat("a class is one column, and label names ", out.labels,
                     ": name one, or say that labels are numbers (labelType: number)"));
  }
  return out;
}

}  // namespace starling
