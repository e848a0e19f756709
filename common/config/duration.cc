#include "common/config/duration.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace starling::config {

absl::StatusOr<double> ParseDuration(const std::string& text) {
  std::string number = text;
  double unit = 1;
  if (!number.empty()) {
    const char last = number.back();
    if (last == 's' || last == 'm' || last == 'h') {
      unit = last == 's' ? 1 : last == 'm' ? 60 : 3600;
      number.pop_back();
    }
  }
  double value = 0;
  // SimpleAtod also takes 0x5 and 1e300, which nobody means as a duration.
  const bool plain = number.find_first_not_of("0123456789.") == std::string::npos;
  if (!plain || !absl::SimpleAtod(number, &value) || !std::isfinite(value * unit) || value <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a duration above 0 like 90s, 30m or 2h, got \"", text, "\""));
  }
  return value * unit;
}

}  // namespace starling::config
