// Kernels that move elements: between layouts and types, and from one order of axes to another.
// They order work on a stream and return the launch's error. Pointers are device memory.
#ifndef STARLING_KERNELS_CUDA_MOVEMENT_H_
#define STARLING_KERNELS_CUDA_MOVEMENT_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/element.h"

namespace starling::cuda {

// to[b][c][r] = from[b][r][c]: `batch` matrices [rows, columns] are transposed. With one column, or
// one row, it changes nothing but the type.
cudaError_t LaunchTranspose(Element from_element, const void* from, Element to_element, void* to,
                            int64_t batch, int64_t rows, int64_t columns, cudaStream_t stream);

// The same elements in another type, in the same order.
cudaError_t LaunchCast(Element from_element, const void* from, Element to_element, void* to,
                       int64_t count, cudaStream_t stream);

inline constexpr int kAxesMax = 8;

// The output's axes: size, and how far apart neighbours lie in the input.
struct AxisOrder {
  int axes = 0;
  int64_t size[kAxesMax] = {};
  int64_t stride[kAxesMax] = {};
};

// to, row-major of `order`'s sizes, = elements of `from` that `order` names.
cudaError_t LaunchPermute(Element element, const AxisOrder& order, const void* from, void* to,
                          int64_t count, cudaStream_t stream);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_MOVEMENT_H_
