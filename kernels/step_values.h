// The inputs of operators that change with each micro-batch. For host code and kernels alike.
#ifndef STARLING_KERNELS_STEP_VALUES_H_
#define STARLING_KERNELS_STEP_VALUES_H_

#include <cstdint>

namespace starling {

// In device memory, for calls that are captured once and launched many times: their arguments are
// frozen, but this is read when they run.
struct StepValues {
  uint32_t step = 0;         // RandomKey::step
  uint32_t micro_batch = 0;  // RandomKey::micro_batch
  float loss_scale = 1;      // BackwardArgs::loss_scale
};

}  // namespace starling

#endif  // STARLING_KERNELS_STEP_VALUES_H_
