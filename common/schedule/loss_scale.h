// The loss scale in fp16: multiplies the gradient at the loss, so that small gradients of values do
// not vanish in backward; the parameters' gradients are divided by it.
#ifndef STARLING_COMMON_SCHEDULE_LOSS_SCALE_H_
#define STARLING_COMMON_SCHEDULE_LOSS_SCALE_H_

#include <cstdint>
#include <string>

#include "common/protocol/ids.h"

namespace starling {

// A state machine over a job's steps in log order: the same outcomes give the same scale. A scale
// is a power of two, so that multiplying or dividing by it only shifts exponents. An overflowing
// step halves it, kCleanSteps clean steps in a row double it (Micikevicius et al. 2018), within
// bounds. Not thread-safe.
class LossScale {
 public:
  static constexpr int kFirstLog2 = 16;
  static constexpr int kLeastLog2 = 0;  // an overflow without scaling is not the scale's fault
  static constexpr int kMostLog2 = 24;
  static constexpr uint32_t kCleanSteps = 2000;

  // The scale of the next step.
  float scale() const;

  // The next step's gradient was finite.
  void Clean();
  // The next step's gradient overflowed with the loss scaled by 2^log2; the step is skipped. If
  // log2 is above the current scale, the scale was already lowered for it: several gradients were
  // in flight. False: the scale is at its minimum, so halving cannot help; the state is unchanged,
  // and the job must stop with Stopped() as its reason.
  bool Overflow(int log2);

  // "fp16: the gradient of step 17, by worker 3, overflowed with ...".
  static std::string Stopped(uint64_t step, WorkerId worker);

  // The whole state, for logs and checkpoints.
  struct State {
    int log2 = kFirstLog2;
    uint32_t clean = 0;  // steps since the scale last changed, below kCleanSteps
    friend bool operator==(const State&, const State&) = default;
  };
  const State& state() const { return state_; }
  // False: out of bounds, so not from state(); nothing changes.
  bool Restore(const State& state);

 private:
  State state_;
};

}  // namespace starling

#endif  // STARLING_COMMON_SCHEDULE_LOSS_SCALE_H_
