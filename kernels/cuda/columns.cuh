// Column sums over the rows of a matrix (columns.h). For .cu files.
#ifndef STARLING_KERNELS_CUDA_COLUMNS_CUH_
#define STARLING_KERNELS_CUDA_COLUMNS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/columns.h"

namespace starling::cuda {

// Two numbers per element, or their sums.
struct Two {
  double first, second;
};

// partial[chunk][column] = sums of pair(row, column). Neighbouring threads take neighbouring
// columns, so the loads of 32 threads coalesce.
template <typename Pair>
__global__ void ColumnChunksKernel(ColumnPlan plan, Pair pair, Two* partial) {
  __shared__ Two sums[kTileRows][kTileColumns];
  const int64_t column = int64_t{blockIdx.x} * kTileColumns + threadIdx.x;
  const int64_t begin = blockIdx.y * plan.rows_per_chunk;
  const int64_t end =
      begin + plan.rows_per_chunk < plan.rows ? begin + plan.rows_per_chunk : plan.rows;
  Two sum = {0, 0};
  if (column < plan.columns) {
    for (int64_t row = begin + threadIdx.y; row < end; row += kTileRows) {
      const float2 element = pair(row, column);
      sum.first += element.x;
      sum.second += element.y;
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= plan.columns) return;
  for (int i = 1; i < kTileRows; ++i) {
    sum.first += sums[i][threadIdx.x].first;
    sum.second += sums[i][threadIdx.x].second;
  }
  partial[blockIdx.y * plan.columns + column] = sum;
}

// Calls finish(column, sums).
template <typename Finish>
__global__ void ColumnFinishKernel(ColumnPlan plan, const Two* partial, Finish finish) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= plan.columns) return;
  Two sum = {0, 0};
  for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
    sum.first += partial[chunk * plan.columns + column].first;
    sum.second += partial[chunk * plan.columns + column].second;
  }
  finish(column, sum);
}

// `pair` returns the float2 of an element, `finish` takes the sums of a column. `workspace`:
// plan.workspace_bytes(), aligned to 16 bytes.
template <typename Pair, typename Finish>
cudaError_t SumColumns(const ColumnPlan& plan, Pair pair, Finish finish, void* workspace,
                       cudaStream_t stream) {
  Two* const partial = static_cast<Two*>(workspace);
  const dim3 grid(static_cast<unsigned>(plan.tiles()), static_cast<unsigned>(plan.chunks));
  ColumnChunksKernel<<<grid, dim3(kTileColumns, kTileRows), 0, stream>>>(plan, pair, partial);
  constexpr int kThreads = 128;
  const auto blocks = static_cast<unsigned>((plan.columns + kThreads - 1) / kThreads);
  ColumnFinishKernel<<<blocks, kThreads, 0, stream>>>(plan, partial, finish);
  return cudaGetLastError();
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_COLUMNS_CUH_
