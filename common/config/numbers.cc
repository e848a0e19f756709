#include "common/config/numbers.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace starling::config {

// yaml-cpp follows YAML 1.1: it takes 010 for eight, and does not know 0o10.
std::optional<int64_t> AsInteger(const YAML::Node& node) {
  if (!node.IsScalar()) return std::nullopt;
  absl::string_view digits = node.Scalar();
  const int base = absl::ConsumePrefix(&digits, "0x")   ? 16
                   : absl::ConsumePrefix(&digits, "0o") ? 8
                                                        : 10;
  const bool minus_allowed = base == 10 && !absl::ConsumePrefix(&digits, "+");
  if (!minus_allowed && absl::StartsWith(digits, "-")) return std::nullopt;
  int64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [read_to, error] = std::from_chars(digits.data(), end, value, base);
  if (error != std::errc() || read_to != end) return std::nullopt;
  return value;
}

std::optional<double> AsNumber(const YAML::Node& node) {
  if (const std::optional<int64_t> integer = AsInteger(node)) return static_cast<double>(*integer);
  double value = 0;
  if (!YAML::convert<double>::decode(node, value)) return std::nullopt;
  return value;
}

}  // namespace starling::config
