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

std::string TrainLossText(const EpochResult& result) {
  if (!result.has_train_loss()) return "not reported";
  if (result.samples() == 0) return LossText(result.train_loss());
  return absl::StrFormat("%s (of %d of %d samples)", LossText(result.train_loss()),
                         result.train_samples(), result.samples());
}

}  // namespace starling
