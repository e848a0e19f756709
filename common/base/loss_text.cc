#include "common/base/loss_text.h"

#include <cmath>

#include "absl/strings/str_format.h"

namespace starling {
namespace {

constexpr double kLeast = 5e-5;  // less is "0.0000"
constexpr double kMost = 1e6;

}  // namespace

std::string LossText(double loss) {
  const double size = std::abs(loss);
  const bool fits = size == 0 || (size >= kLeast && size < kMost);
  return fits ? absl::StrFormat("%.4f", loss) : absl::StrFormat("%.4g", loss);
}

}  // namespace starling
