#include "common/config/bytes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace starling::config {

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  constexpr std::pair<absl::string_view, double> kUnits[] = {
      {"", 1},
      {"b", 1},
      {"kb", 1e3},
      {"mb", 1e6},
      {"gb", 1e9},
      {"tb", 1e12},
      {"ki", 1024.0},
      {"kib", 1024.0},
      {"mi", 1048576},
      {"mib", 1048576},
      {"gi", 1073741824},
      {"gib", 1073741824},
      {"ti", 1099511627776.0},
      {"tib", 1099511627776.0},
  };
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text.substr(end)));
  int64_t whole = 0;
  if (unit.empty() && absl::SimpleAtoi(text.substr(0, end), &whole) && whole >= 1) return whole;
  double number = 0;
  for (const auto& [name, factor] : kUnits) {
    if (unit != name || !absl::SimpleAtod(text.substr(0, end), &number)) continue;
    const double bytes = number * factor;
    if (bytes >= 1 && bytes < 9.2e18) return static_cast<int64_t>(bytes);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected a number of bytes of at least 1, like 1073741824, 1GiB or 1.5GB, got \"", text,
      "\""));
}

}  // namespace starling::config
