// Kernels that move elements between layouts, types and orders of axes. These functions order
// kernels on a stream and return the launch's error. Pointers are device memory.
#ifndef STARLING_KERNELS_CUDA_MOVEMENT_H_
#define STARLING_KERNELS_CUDA_MOVEMENT_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/element.h"

namespace starling::cuda {

// to[b][c][r] = from[b][r][c]: transposes `batch` matrices [rows, columns]. With one column or one
// row only the type changes.
cudaError_t LaunchTranspose(Element from_element, const void* from, Element to_element, void* to,
                            int64_t batch, int64_t rows, int64_t columns, cudaStream_t stream);

// The same elements in the same order, converted to another type.
cudaError_t LaunchCast(Element from_element, const void* from, Element to_element, void* to,
                       int64_t count, cudaStream_t stream);

// Rows of elements that are apart in memory.
struct CastOfRows {
  Element from_element = Element::kFloat, to_element = Element::kFloat;
  int64_t rows = 0, columns = 0;
  int64_t from_row = 0, to_row = 0;  // elements from one row to the next; at least `columns`
};

// The same elements, row by row, converted to another type. What is between rows of `to` is zero.
cudaError_t LaunchCastRows(const CastOfRows& cast, const void* from, void* to, cudaStream_t stream);

inline constexpr int kAxesMax = 8;

// The output's axes: their sizes and their strides in the input.
struct AxisOrder {
  int axes = 0;
  int64_t size[kAxesMax] = {};
  int64_t stride[kAxesMax] = {};
};

// to = the elements of `from` that `order` names, row-major in `order`'s sizes.
cudaError_t LaunchPermute(Element element, const AxisOrder& order, const void* from, void* to,
                          int64_t count, cudaStream_t stream);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_MOVEMENT_H_
