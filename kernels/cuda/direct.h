// Convolution by its definition, for shapes without a cuDNN plan: any layout, groups and dilation,
// many times slower than a plan. These functions order kernels on a stream and return the launch's
// error. Pointers are device memory.
#ifndef STARLING_KERNELS_CUDA_DIRECT_H_
#define STARLING_KERNELS_CUDA_DIRECT_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/element.h"

namespace starling::cuda {

// A value's sizes and strides.
struct DirectTensor {
  int64_t size[4] = {};
  int64_t step[4] = {};
};

// x: [N, C, H, W], w: [O, C / groups, kh, kw], y: [N, O, oh, ow]; each pair is (height, width).
struct DirectShape {
  DirectTensor x, w, y;
  int64_t stride[2] = {1, 1}, padding[2] = {}, dilation[2] = {1, 1};
};

// All of one type. Sums are in float, those of the weight's gradient in double, each in one order.
cudaError_t LaunchDirectForward(Element element, const DirectShape& shape, const void* x,
                                const void* w, void* y, cudaStream_t stream);
cudaError_t LaunchDirectInputGradient(Element element, const DirectShape& shape, const void* w,
                                      const void* dy, void* dx, cudaStream_t stream);
cudaError_t LaunchDirectWeightGradient(Element element, const DirectShape& shape, const void* x,
                                       const void* dy, void* dw, cudaStream_t stream);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_DIRECT_H_
