// Column sums over the rows of a matrix: how the work is split. Host code only. Sums are in double
// and in a fixed order, so a value gives the same bits every time.
#ifndef STARLING_KERNELS_CUDA_COLUMNS_H_
#define STARLING_KERNELS_CUDA_COLUMNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace starling::cuda {

// A block of threads sums kTileColumns columns of a chunk of rows; a second kernel adds up the
// chunks.
inline constexpr int kTileColumns = 32;
inline constexpr int kTileRows = 8;

struct ColumnPlan {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t chunks = 1;
  int64_t rows_per_chunk = 0;

  int64_t tiles() const { return (columns + kTileColumns - 1) / kTileColumns; }
  // For the chunks' sums: two numbers per column.
  size_t workspace_bytes() const {
    return static_cast<size_t>(chunks * columns) * 2 * sizeof(double);
  }
};

// As many chunks as fill the GPU, but none so small that adding them up costs more.
inline ColumnPlan PlanColumns(int64_t rows, int64_t columns) {
  constexpr int64_t kBlocksWanted = 132 * 8;
  constexpr int64_t kRowsMin = 8 * kTileRows;
  ColumnPlan plan = {.rows = rows, .columns = columns};
  const int64_t wanted = std::max<int64_t>(kBlocksWanted / plan.tiles(), 1);
  const int64_t most = std::max<int64_t>(rows / kRowsMin, 1);
  plan.rows_per_chunk = (rows + std::min(wanted, most) - 1) / std::min(wanted, most);
  plan.chunks = (rows + plan.rows_per_chunk - 1) / plan.rows_per_chunk;
  return plan;
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_COLUMNS_H_
