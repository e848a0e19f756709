// Column sums over the rows of a matrix, and maps whose factors are per column (columns.h). For .cu
// files.
#ifndef STARLING_KERNELS_CUDA_COLUMNS_CUH_
#define STARLING_KERNELS_CUDA_COLUMNS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/columns.h"
#include "kernels/cuda/device_math.cuh"

namespace starling::cuda {

// Two numbers per element, or their sums.
struct Two {
  double first, second;
};

template <int kPack>
dim3 ColumnBlock(int64_t columns) {
  const auto across = static_cast<unsigned>(ThreadsAcross(columns, kPack));
  return dim3(across, kColumnThreads / across);
}

// partial[chunk][column] = sums over the chunk's rows. A thread stays in its pack of columns and
// adds a few rows in float, then those sums in double.
template <int kPack, typename Pairs>
__global__ void __launch_bounds__(kColumnThreads, 4)
    ColumnChunksKernel(ColumnPlan plan, Pairs pairs, Two* partial) {
  constexpr int kRowsInFloat = 8;
  __shared__ Two sums[kPack][kColumnThreads];
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPack;
  const int64_t begin = blockIdx.y * plan.rows_per_chunk;
  const int64_t end =
      begin + plan.rows_per_chunk < plan.rows ? begin + plan.rows_per_chunk : plan.rows;
  const int rows = static_cast<int>(blockDim.y), across = static_cast<int>(blockDim.x);
  const int y = static_cast<int>(threadIdx.y);
  Two sum[kPack] = {};
  float first[kPack] = {}, second[kPack] = {};
  const auto fold = [&] {
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      sum[k].first += first[k];
      sum[k].second += second[k];
      first[k] = second[k] = 0;
    }
  };
  if (column < plan.columns) {
    const auto factors = pairs.Of(column);
    const auto add = [&](int64_t row) {
      pairs.Add(factors, row, row * plan.columns + column, first, second);
    };
    int64_t row = begin + y;
    for (; row + (kRowsInFloat - 1) * rows < end; row += kRowsInFloat * rows) {
#pragma unroll
      for (int i = 0; i < kRowsInFloat; ++i) add(row + i * rows);
      fold();
    }
    for (; row < end; row += rows) add(row);
    fold();
  }
  const int thread = y * across + static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < kPack; ++k) sums[k][thread] = sum[k];
  for (int half = rows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (y >= half) continue;
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const Two other = sums[k][thread + half * across];
      sums[k][thread].first += other.first;
      sums[k][thread].second += other.second;
    }
  }
  if (y != 0 || column >= plan.columns) return;
#pragma unroll
  for (int k = 0; k < kPack; ++k) partial[blockIdx.y * plan.columns + column + k] = sums[k][thread];
}

inline constexpr int kFinishColumns = 16, kFinishRows = 16;

// Calls finish(column, sums).
template <typename Finish>
__global__ void ColumnFinishKernel(ColumnPlan plan, const Two* partial, Finish finish) {
  __shared__ Two sums[kFinishRows][kFinishColumns];
  const int64_t column = int64_t{blockIdx.x} * kFinishColumns + threadIdx.x;
  Two sum = {0, 0};
  if (column < plan.columns) {
    for (int64_t chunk = threadIdx.y; chunk < plan.chunks; chunk += kFinishRows) {
      const Two chunk_sum = partial[chunk * plan.columns + column];
      sum.first += chunk_sum.first;
      sum.second += chunk_sum.second;
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= plan.columns) return;
  for (int i = 1; i < kFinishRows; ++i) {
    sum.first += sums[i][threadIdx.x].first;
    sum.second += sums[i][threadIdx.x].second;
  }
  finish(column, sum);
}

// `pairs` makes two numbers of each element: its Of(column) returns what a thread keeps of its
// columns, and its Add(that, row, index, first, second) adds the numbers of kPack elements, of
// which the first is the index-th. `finish` takes the sums of a column. `workspace`:
// plan.workspace_bytes(), aligned to 16 bytes.
template <int kPack, typename Pairs, typename Finish>
cudaError_t SumColumns(const ColumnPlan& plan, Pairs pairs, Finish finish, void* workspace,
                       cudaStream_t stream) {
  Two* const partial = static_cast<Two*>(workspace);
  const dim3 grid(static_cast<unsigned>(TilesAcross(plan.columns, kPack)),
                  static_cast<unsigned>(plan.chunks));
  const dim3 block = ColumnBlock<kPack>(plan.columns);
  ColumnChunksKernel<kPack><<<grid, block, 0, stream>>>(plan, pairs, partial);
  const auto blocks = static_cast<unsigned>((plan.columns + kFinishColumns - 1) / kFinishColumns);
  ColumnFinishKernel<<<blocks, dim3(kFinishColumns, kFinishRows), 0, stream>>>(plan, partial,
                                                                               finish);
  return cudaGetLastError();
}

// A thread stays in its pack of columns and reads their factors once. Two rows are read before
// either is written, so that more loads are under way.
template <int kPack, typename Map>
__global__ void MapColumnsKernel(ColumnPlan plan, Map map) {
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPack;
  if (column >= plan.columns) return;
  const auto factors = map.Of(column);
  const int64_t stride = int64_t{gridDim.y} * blockDim.y;
  int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
  for (; row + stride < plan.rows; row += 2 * stride) {
    const int64_t at = row * plan.columns + column, next = at + stride * plan.columns;
    const auto read = map.Read(at);
    const auto read_next = map.Read(next);
    map.Write(factors, read, at);
    map.Write(factors, read_next, next);
  }
  if (row >= plan.rows) return;
  const int64_t at = row * plan.columns + column;
  map.Write(factors, map.Read(at), at);
}

// `map` has Of(column) as above, Read(index), which returns the inputs of kPack elements, and
// Write(factors, inputs, index).
template <int kPack, typename Map>
cudaError_t MapColumns(const ColumnPlan& plan, Map map, cudaStream_t stream) {
  constexpr int64_t kBlocksWanted = 132 * 8;
  const dim3 block = ColumnBlock<kPack>(plan.columns);
  const int64_t tiles = TilesAcross(plan.columns, kPack);
  const int64_t most = (plan.rows + block.y - 1) / block.y;
  const int64_t wanted = std::max<int64_t>(kBlocksWanted / tiles, 1);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(std::min(most, wanted)));
  MapColumnsKernel<kPack><<<grid, block, 0, stream>>>(plan, map);
  return cudaGetLastError();
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_COLUMNS_CUH_
