#include "common/config/section.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/config/numbers.h"

namespace starling::config {

Section Section::Child(const std::string& key) const {
  return Section(Has(key) ? node_[key] : YAML::Node(YAML::NodeType::Null),
                 path_.empty() ? key : absl::StrCat(path_, ".", key), status_);
}

void Section::Fail(const std::string& key, const std::string& what) const {
  if (!status_->ok()) return;
  const Section child = Child(key);
  *status_ = absl::InvalidArgumentError(
      absl::StrCat(Where(Has(key) ? child.node_ : node_, child.path_), ": ", what));
}

std::vector<std::string> Section::Texts(const std::string& key) const {
  std::vector<std::string> values;
  if (!Has(key)) return values;
  for (const auto& item : node_[key]) values.push_back(item.Scalar());
  return values;
}

std::vector<Section> Section::Items(const std::string& key) const {
  std::vector<Section> items;
  if (!Has(key)) return items;
  const Section list = Child(key);
  for (size_t i = 0; i < list.node_.size(); ++i)
    items.emplace_back(list.node_[i], absl::StrCat(list.path_, "[", i, "]"), status_);
  return items;
}

std::vector<double> Section::Numbers(const std::string& key) const {
  std::vector<double> values;
  if (!Has(key)) return values;
  for (const auto& item : node_[key]) {
    values.push_back(AsNumber(item).value_or(0));
    if (!std::isfinite(values.back()))
      Fail(key, absl::StrCat("expected finite numbers, got ", item.Scalar()));
  }
  return values;
}

std::vector<int64_t> Section::Integers(const std::string& key, Range range) const {
  std::vector<int64_t> values;
  if (!Has(key)) return values;
  for (const auto& item : node_[key]) {
    const std::optional<int64_t> value = AsInteger(item);
    if (!value || static_cast<double>(*value) < range.least ||
        static_cast<double>(*value) > range.most) {
      Fail(key, absl::StrCat("expected whole numbers from ", static_cast<int64_t>(range.least),
                             " to ", static_cast<int64_t>(range.most), ", got ", item.Scalar()));
      return {};
    }
    values.push_back(*value);
  }
  return values;
}

}  // namespace starling::config
