#include "worker/executor/micro_batches.h"

#include <vector>

#include "gtest/gtest.h"

namespace starling {
namespace {

using Results = absl::InlinedVector<RangeResult, 8>;

Results Summed(const std::vector<WorkRange>& ranges) {
  MicroBatches micro_batches;
  micro_batches.Begin(ranges);
  uint64_t index = 0;
  for (const WorkRange& range : ranges) {
    for (uint64_t id = range.first; id < range.first + range.count; ++id)
      micro_batches.outcome(index++) = {1.0 / static_cast<double>(id + 3), 2, 1};
  }
  Results results;
  micro_batches.Sum(&results);
  return results;
}

TEST(MicroBatchesTest, ARangesSumIsThatOfItsHalves) {
  const Results whole = Summed({{WorkPurpose::kTrain, 0, 0, 16}});
  const Results halves = Summed({{WorkPurpose::kTrain, 0, 0, 8}, {WorkPurpose::kTrain, 0, 8, 8}});
  ASSERT_EQ(whole.size(), 1u);
  ASSERT_EQ(halves.size(), 2u);
  EXPECT_EQ(whole[0].loss_sum, halves[0].loss_sum + halves[1].loss_sum) << "to the last bit";
  EXPECT_EQ(whole[0].samples, 32u);
  EXPECT_EQ(whole[0].correct, 16u);
}

}  // namespace
}  // namespace starling
