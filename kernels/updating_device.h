// A device that can also train parameters without a server: a GPU is one, besides being a Device.
#ifndef STARLING_KERNELS_UPDATING_DEVICE_H_
#define STARLING_KERNELS_UPDATING_DEVICE_H_

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/optimizer_step.h"

namespace starling {

// Found by dynamic_cast from a Device. Thread-safe.
class UpdatingDevice {
 public:
  virtual ~UpdatingDevice() = default;
  // Orders one in-place step of w and its slots on `stream`, `elements` floats each in device
  // memory. Slots that step.kind does not have are null.
  virtual absl::Status Update(const OptimizerStep& step, const float* gradient, float* w,
                              float* slot0, float* slot1, size_t elements, Stream& stream) = 0;
};

}  // namespace starling

#endif  // STARLING_KERNELS_UPDATING_DEVICE_H_
