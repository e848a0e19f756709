#include "common/schedule/loss_scale.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace starling {

float LossScale::scale() const { return std::ldexp(1.0f, state_.log2); }

// At the upper bound clean steps are no longer counted: the next change can only be down.
void LossScale::Clean() {
  if (state_.log2 == kMostLog2) return;
  if (++state_.clean < kCleanSteps) return;
  state_.clean = 0;
  ++state_.log2;
}

bool LossScale::Overflow(int log2) {
  if (log2 > state_.log2) return true;
  if (state_.log2 == kLeastLog2) return false;
  state_.clean = 0;
  --state_.log2;
  return true;
}

std::string LossScale::Stopped(uint64_t step, WorkerId worker) {
  return absl::StrCat(
      "fp16: the gradient of step ", step, ", by worker ", worker.value,
      ", overflowed with the loss scaled by ", std::ldexp(1.0, kLeastLog2),
      ", the least: numbers beyond 65504 arise without any scaling. Use precision: bf16, which has "
      "the range of fp32, a lower learning rate, or clip");
}

bool LossScale::Restore(const State& state) {
  if (state.log2 < kLeastLog2 || state.log2 > kMostLog2) return false;
  const uint32_t clean_max = state.log2 == kMostLog2 ? 0 : kCleanSteps - 1;
  if (state.clean > clean_max) return false;
  state_ = state;
  return true;
}

}  // namespace starling
