// One NVIDIA GPU as a device.
#ifndef STARLING_KERNELS_CUDA_CUDA_DEVICE_H_
#define STARLING_KERNELS_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace starling::cuda {

// The first GPU that the driver lists. kFailedPrecondition: no GPU can be used; the message says
// why (survey.h).
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice();

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_CUDA_DEVICE_H_
