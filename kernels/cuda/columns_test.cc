#include "kernels/cuda/columns.h"

#include "gtest/gtest.h"

namespace starling::cuda {
namespace {

TEST(ColumnPlanTest, ChunksCoverAllRowsOnce) {
  for (int64_t rows : {1, 7, 64, 65, 1000, 8192, 3211264}) {
    for (int64_t columns : {1, 10, 32, 33, 384, 50257}) {
      const ColumnPlan plan = PlanColumns(rows, columns);
      EXPECT_GE(plan.chunks * plan.rows_per_chunk, rows);
      EXPECT_LT((plan.chunks - 1) * plan.rows_per_chunk, rows) << "no chunk is empty";
      for (int pack : {1, 4, 8}) {
        const int across = ThreadsAcross(columns, pack);
        EXPECT_EQ(kColumnThreads % across, 0);
        EXPECT_GE(TilesAcross(columns, pack) * across * pack, columns);
        EXPECT_LT((TilesAcross(columns, pack) - 1) * across * pack, columns) << "no tile is empty";
      }
      const int64_t tiles = TilesAcross(columns, kSummedPack);
      EXPECT_LE(plan.chunks * tiles, std::max<int64_t>(tiles, 132 * 4));
      EXPECT_EQ(plan.workspace_bytes(), static_cast<size_t>(plan.chunks * columns * 16));
    }
  }
}

TEST(ColumnPlanTest, FewRowsAreOneChunk) {
  EXPECT_EQ(PlanColumns(100, 10).chunks, 1);
  EXPECT_EQ(PlanColumns(8192, 384).chunks, 128);
}

}  // namespace
}  // namespace starling::cuda
