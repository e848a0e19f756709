// What differs from one micro-batch to the next in what operators compute. Host code and kernels
// alike.
#ifndef STARLING_KERNELS_STEP_VALUES_H_
#define STARLING_KERNELS_STEP_VALUES_H_

#include <cstdint>

namespace starling {

// In device memory, where calls are captured once and launched again: their arguments stay as they
// were then, and what lies here is read when they run.
struct StepValues {
  uint32_t step = 0;         // RandomKey::step
  uint32_t micro_batch = 0;  // RandomKey::micro_batch
  float loss_scale = 1;      // BackwardArgs::loss_scale
};

}  // namespace starling

#endif  // STARLING_KERNELS_STEP_VALUES_H_
