#include "common/config/section.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/config/schema.h"

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

int64_t Section::Integer(const std::string& key, int64_t fallback, int64_t least,
                         int64_t most) const {
  if (!Has(key)) return fallback;
  const int64_t value = node_[key].as<int64_t>(fallback);
  if (value < least || value > most) {
    Fail(key, absl::StrCat("expected a whole number from ", least, " to ", most, ", got ",
                           node_[key].Scalar()));
    return fallback;
  }
  return value;
}

double Section::Number(const std::string& key, double fallback, double least, double most) const {
  if (!Has(key)) return fallback;
  const double value = node_[key].as<double>(fallback);
  if (!std::isfinite(value) || value < least || value > most) {
    Fail(key, absl::StrCat("expected a finite number from ", least, " to ", most, ", got ",
                           node_[key].Scalar()));
    return fallback;
  }
  return value;
}

std::string Section::Text(const std::string& key, const std::string& fallback) const {
  return Has(key) ? node_[key].Scalar() : fallback;
}

std::vector<std::string> Section::Texts(const std::string& key) const {
  std::vector<std::string> values;
  if (!Has(key)) return values;
  for (const auto& item : node_[key]) values.push_back(item.Scalar());
  return values;
}

bool Section::Boolean(const std::string& key, bool fallback) const {
  return Has(key) ? node_[key].as<bool>(fallback) : fallback;
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
    values.push_back(item.as<double>(0));
    if (!std::isfinite(values.back()))
      Fail(key, absl::StrCat("expected finite numbers, got ", item.Scalar()));
  }
  return values;
}

std::vector<int64_t> Section::Integers(const std::string& key, int64_t least, int64_t most) const {
  std::vector<int64_t> values;
  for (double value : Numbers(key)) {
    if (value != std::floor(value) || value < static_cast<double>(least) ||
        value > static_cast<double>(most)) {
      Fail(key, absl::StrCat("expected whole numbers from ", least, " to ", most, ", got ", value));
      return {};
    }
    values.push_back(static_cast<int64_t>(value));
  }
  return values;
}

}  // namespace starling::config
