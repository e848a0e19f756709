// An optimizer step on parameters in device memory.
#ifndef STARLING_KERNELS_CUDA_UPDATE_H_
#define STARLING_KERNELS_CUDA_UPDATE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/optimizer_step.h"

namespace starling::cuda {

// Orders UpdatingDevice::Update on a stream and returns the launch's error. Pointers are device
// memory.
cudaError_t LaunchUpdate(const OptimizerStep& step, const float* gradient, float* w, float* slot0,
                         float* slot1, int64_t count, cudaStream_t stream);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_UPDATE_H_
