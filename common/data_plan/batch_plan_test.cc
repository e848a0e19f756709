#include "common/data_plan/batch_plan.h"

#include <gtest/gtest.h>

#include <limits>

namespace starling {
namespace {

TEST(BatchPlan, CutsALastStepThatIsShort) {
  const BatchPlan plan = *BatchPlan::Make(/*samples=*/21, /*global=*/8, /*micro_batches=*/4);
  EXPECT_EQ(plan.steps(), 3u);
  EXPECT_EQ(plan.ids(), 12u);
  EXPECT_EQ(plan.micro_batch_samples(), 2u);
  EXPECT_EQ(plan.Positions(0), (PositionRange{0, 2}));
  EXPECT_EQ(plan.Positions(7), (PositionRange{14, 16}));
  EXPECT_EQ(plan.Positions(8), (PositionRange{16, 18}));
  EXPECT_EQ(plan.Positions(10), (PositionRange{20, 21}));  // short
  EXPECT_EQ(plan.Positions(11).size(), 0);                 // empty
  EXPECT_EQ(plan.Positions(8, 4), (PositionRange{16, 21}));
  EXPECT_EQ(plan.Positions(100).size(), 0);
  EXPECT_EQ(plan.Positions(10, std::numeric_limits<uint64_t>::max()), (PositionRange{20, 21}));
}

TEST(BatchPlan, EveryPositionIsInExactlyOneMicroBatch) {
  for (int64_t samples : {1, 7, 8, 9, 31, 32, 33, 100}) {
    for (uint32_t micro_batches : {1, 2, 8}) {
      const BatchPlan plan = *BatchPlan::Make(samples, 16, micro_batches);
      int64_t next = 0;
      for (uint64_t id = 0; id < plan.ids(); ++id) {
        const PositionRange range = plan.Positions(id);
        if (range.size() == 0) continue;
        EXPECT_EQ(range.begin, next);
        next = range.end;
      }
      EXPECT_EQ(next, samples);
    }
  }
}

TEST(BatchPlan, RefusesWhatCannotBeCut) {
  EXPECT_FALSE(BatchPlan::Make(0, 8, 2).ok());
  EXPECT_FALSE(BatchPlan::Make(-1, 8, 2).ok());
  EXPECT_FALSE(BatchPlan::Make((int64_t{1} << 40) + 1, 8, 2).ok());
  EXPECT_FALSE(BatchPlan::Make(10, 0, 1).ok());
  EXPECT_FALSE(BatchPlan::Make(10, (1 << 20) + 1, 1).ok());
  EXPECT_FALSE(BatchPlan::Make(10, 8, 0).ok());
  EXPECT_FALSE(BatchPlan::Make(10, 9, 3).ok());
  EXPECT_FALSE(BatchPlan::Make(10, 4096, 2048).ok());
  EXPECT_EQ(BatchPlan::Make(10, 10, 4).status().message(),
            "batch.global 10 is not a multiple of batch.microBatches 4");
}

}  // namespace
}  // namespace starling
