// The scale of the loss in fp16: what the gradient at the loss is multiplied by, so that small
// gradients of values do not vanish on their way, and what parameters' gradients are divided by.
#ifndef STARLING_COMMON_SCHEDULE_LOSS_SCALE_H_
#define STARLING_COMMON_SCHEDULE_LOSS_SCALE_H_

#include <cstdint>
#include <string>

#include "common/protocol/ids.h"

namespace starling {

// A state machine over the steps of a job, in the order of their log: whoever saw the same outcomes
// has the same scale. A scale is a power of two, so that multiplying and dividing by it only shifts
// exponents. Halved by a step that overflowed, doubled after kCleanSteps others in a row
// (Micikevicius et al. 2018), within bounds. Not thread-safe.
class LossScale {
 public:
  static constexpr int kFirstLog2 = 16;
  static constexpr int kLeastLog2 = 0;  // an overflow without any scaling is no matter of the scale
  static constexpr int kMostLog2 = 24;
  static constexpr uint32_t kCleanSteps = 2000;

  // For the next step.
  float scale() const;

  // The next step's gradient was finite.
  void Clean();
  // It was not, with the loss scaled by 2^log2, and the step is skipped. Where that was more than
  // the scale is now, it has been answered already: several gradients were under way. False: the
  // scale is at its least already, so no further halving can help, and the job must stop with
  // Stopped() as its reason. The state is then as it was.
  bool Overflow(int log2);

  // "fp16: the gradient of step 17, by worker 3, overflowed with ...".
  static std::string Stopped(uint64_t step, WorkerId worker);

  // All of the state, for logs and checkpoints.
  struct State {
    int log2 = kFirstLog2;
    uint32_t clean = 0;  // steps since the scale last changed, below kCleanSteps
    friend bool operator==(const State&, const State&) = default;
  };
  const State& state() const { return state_; }
  // False, and nothing changes: out of bounds, so no state that state() gave.
  bool Restore(const State& state);

 private:
  State state_;
};

}  // namespace starling

#endif  // STARLING_COMMON_SCHEDULE_LOSS_SCALE_H_
