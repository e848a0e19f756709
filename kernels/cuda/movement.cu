#include <algorithm>
#include <limits>

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/movement.h"

namespace starling::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;
constexpr int kTileStep = 8;

// Goes through a tile in shared memory, so that reads and writes both coalesce; the extra column
// puts a tile's column into different banks.
template <typename From, typename To>
__global__ void TransposeKernel(const From* from, To* to, int64_t batch, int64_t rows,
                                int64_t columns) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t column_begin = int64_t{blockIdx.x} * kTile;
  const int64_t row_tiles = (rows + kTile - 1) / kTile;
  // Batch and row tiles share one axis of the grid, because its other axes are short.
  for (int64_t work = blockIdx.y; work < batch * row_tiles; work += gridDim.y) {
    const int64_t b = work / row_tiles, row_begin = work % row_tiles * kTile;
    const From* const in = from + b * rows * columns;
    To* const out = to + b * rows * columns;
    for (int y = threadIdx.y; y < kTile; y += kTileStep) {
      const int64_t row = row_begin + y, column = column_begin + threadIdx.x;
      if (row < rows && column < columns) {
        tile[y][threadIdx.x] = ToFloat(in[row * columns + column]);
      }
    }
    __syncthreads();
    for (int y = threadIdx.y; y < kTile; y += kTileStep) {
      const int64_t row = row_begin + threadIdx.x, column = column_begin + y;
      if (row < rows && column < columns) {
        out[column * rows + row] = FromFloat<To>(tile[threadIdx.x][y]);
      }
    }
    __syncthreads();
  }
}

// For matrices so narrow that tiles would be mostly empty: neighbouring threads write neighbouring
// elements, and the cache serves reads.
template <typename From, typename To>
__global__ void NarrowTransposeKernel(const From* from, To* to, int64_t count, int rows,
                                      int columns) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t matrix = int64_t{rows} * columns;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const int64_t b = i / matrix;
    const int at = static_cast<int>(i - b * matrix);
    const int column = at / rows, row = at - column * rows;
    to[i] = FromFloat<To>(ToFloat(from[b * matrix + int64_t{row} * columns + column]));
  }
}

template <typename From, typename To>
__global__ void CastKernel(const From* __restrict__ from, To* __restrict__ to, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    to[i] = FromFloat<To>(ToFloat(from[i]));
  }
}

// kPack elements at a time.
template <typename From, typename To, int kPack>
__global__ void CastPacksKernel(const From* __restrict__ from, To* __restrict__ to, int64_t packs) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += stride) {
    const Pack<From, kPack> in = LoadPack<kPack>(from + i * kPack);
    Pack<To, kPack> out;
#pragma unroll
    for (int k = 0; k < kPack; ++k) out.at[k] = FromFloat<To>(ToFloat(in.at[k]));
    StorePack(to + i * kPack, out);
  }
}

template <typename From, typename To>
__global__ void CastRowsKernel(const From* from, To* to, int64_t rows, int64_t columns,
                               int64_t from_row, int64_t to_row) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int64_t i = threadIdx.x; i < to_row; i += blockDim.x) {
      to[row * to_row + i] = FromFloat<To>(i < columns ? ToFloat(from[row * from_row + i]) : 0.0f);
    }
  }
}

template <typename T>
__global__ void PermuteKernel(AxisOrder order, const T* from, T* to, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    int64_t rest = i, at = 0;
    for (int axis = order.axes - 1; axis >= 0; --axis) {
      at += rest % order.size[axis] * order.stride[axis];
      rest /= order.size[axis];
    }
    to[i] = from[at];
  }
}

template <typename F>
cudaError_t WithTypes(Element from, Element to, F f) {
  return WithType(from, [&](auto a) { return WithType(to, [&](auto b) { return f(a, b); }); });
}

}  // namespace

cudaError_t LaunchTranspose(Element from_element, const void* from, Element to_element, void* to,
                            int64_t batch, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (rows == 1 || columns == 1) {
    return LaunchCast(from_element, from, to_element, to, batch * rows * columns, stream);
  }
  constexpr int64_t kNarrow = kTile / 2;
  if (std::min(rows, columns) < kNarrow && rows * columns <= std::numeric_limits<int>::max()) {
    const int64_t count = batch * rows * columns;
    return WithTypes(from_element, to_element, [&](auto a, auto b) {
      using From = decltype(a);
      using To = decltype(b);
      NarrowTransposeKernel<From, To><<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
          static_cast<const From*>(from), static_cast<To*>(to), count, static_cast<int>(rows),
          static_cast<int>(columns));
      return cudaGetLastError();
    });
  }
  const int64_t work = batch * ((rows + kTile - 1) / kTile);
  const dim3 grid(static_cast<unsigned>((columns + kTile - 1) / kTile),
                  static_cast<unsigned>(std::min<int64_t>(work, 65535)));
  return WithTypes(from_element, to_element, [&](auto a, auto b) {
    using From = decltype(a);
    using To = decltype(b);
    TransposeKernel<From, To><<<grid, dim3(kTile, kTileStep), 0, stream>>>(
        static_cast<const From*>(from), static_cast<To*>(to), batch, rows, columns);
    return cudaGetLastError();
  });
}

cudaError_t LaunchCast(Element from_element, const void* from, Element to_element, void* to,
                       int64_t count, cudaStream_t stream) {
  if (from_element == to_element) {
    return cudaMemcpyAsync(to, from, static_cast<size_t>(count * ElementBytes(to_element)),
                           cudaMemcpyDeviceToDevice, stream);
  }
  return WithTypes(from_element, to_element, [&](auto a, auto b) {
    using From = decltype(a);
    using To = decltype(b);
    constexpr int kPack = 8;
    if (count % kPack == 0 && Aligned16(from) && Aligned16(to)) {
      const int64_t packs = count / kPack;
      CastPacksKernel<From, To, kPack><<<BlocksFor(packs, kThreads), kThreads, 0, stream>>>(
          static_cast<const From*>(from), static_cast<To*>(to), packs);
      return cudaGetLastError();
    }
    CastKernel<From, To><<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
        static_cast<const From*>(from), static_cast<To*>(to), count);
    return cudaGetLastError();
  });
}

cudaError_t LaunchCastRows(const CastOfRows& cast, const void* from, void* to,
                           cudaStream_t stream) {
  return WithTypes(cast.from_element, cast.to_element, [&](auto a, auto b) {
    using From = decltype(a);
    using To = decltype(b);
    CastRowsKernel<From, To><<<BlocksFor(cast.rows, 1), kThreads, 0, stream>>>(
        static_cast<const From*>(from), static_cast<To*>(to), cast.rows, cast.columns,
        cast.from_row, cast.to_row);
    return cudaGetLastError();
  });
}

cudaError_t LaunchPermute(Element element, const AxisOrder& order, const void* from, void* to,
                          int64_t count, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    PermuteKernel<T><<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
        order, static_cast<const T*>(from), static_cast<T*>(to), count);
    return cudaGetLastError();
  });
}

}  // namespace starling::cuda
