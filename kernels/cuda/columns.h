// Column sums over the rows of a matrix: how the work is split. Host code only. A few rows are
// added in float, their sums in double, all in a fixed order: a value gives the same bits every
// time.
#ifndef STARLING_KERNELS_CUDA_COLUMNS_H_
#define STARLING_KERNELS_CUDA_COLUMNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace starling::cuda {

// A block sums a tile of neighbouring columns over a chunk of rows; a second kernel adds up the
// chunks.
inline constexpr int kColumnThreads = 256;
// Columns of a thread, if alignment permits. With more, sums would leave registers for few threads.
inline constexpr int kSummedPack = 4;
// Threads of a block that share a row, at most; each takes one pack of columns.
inline constexpr int kThreadsAcrossMax = 32;

struct ColumnPlan {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t chunks = 1;
  int64_t rows_per_chunk = 0;

  // For the chunks' sums: two numbers per column.
  size_t workspace_bytes() const {
    return static_cast<size_t>(chunks * columns) * 2 * sizeof(double);
  }
};

// Threads of a block along the columns, a power of two; the rest are along the rows.
inline int ThreadsAcross(int64_t columns, int pack) {
  int across = 1;
  while (across < kThreadsAcrossMax && int64_t{across} * pack < columns) across *= 2;
  return across;
}

// Tiles that cover the columns.
inline int64_t TilesAcross(int64_t columns, int pack) {
  const int64_t tile = int64_t{ThreadsAcross(columns, pack)} * pack;
  return (columns + tile - 1) / tile;
}

// As many chunks as fill the GPU, but none so small that adding them up costs more.
inline ColumnPlan PlanColumns(int64_t rows, int64_t columns) {
  constexpr int64_t kBlocksWanted = 132 * 4;
  constexpr int64_t kRowsMin = 64;
  ColumnPlan plan = {.rows = rows, .columns = columns};
  const int64_t wanted = std::max<int64_t>(kBlocksWanted / TilesAcross(columns, kSummedPack), 1);
  const int64_t most = std::max<int64_t>(rows / kRowsMin, 1);
  plan.rows_per_chunk = (rows + std::min(wanted, most) - 1) / std::min(wanted, most);
  plan.chunks = (rows + plan.rows_per_chunk - 1) / plan.rows_per_chunk;
  return plan;
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_COLUMNS_H_
