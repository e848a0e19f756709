#include "common/trace/flow.h"

#include <gtest/gtest.h>

#include <set>

namespace starling {
namespace {

TEST(Flow, JoinsThePartsOfOneStepAndNothingElse) {
  const RunId run{JobUid(7), 0};
  const uint64_t step = FlowOf(run, SliceId(3), {WorkPurpose::kTrain, 1, 8, 4}, 4);
  EXPECT_EQ(FlowOf(run, SliceId(3), {WorkPurpose::kTrain, 1, 10, 2}, 4), step);
  std::set<uint64_t> flows = {step};
  flows.insert(FlowOf(run, SliceId(3), {WorkPurpose::kTrain, 1, 12, 4}, 4));
  flows.insert(FlowOf(run, SliceId(4), {WorkPurpose::kTrain, 1, 8, 4}, 4));
  flows.insert(FlowOf(run, SliceId(3), {WorkPurpose::kTrain, 2, 8, 4}, 4));
  flows.insert(FlowOf({JobUid(8), 0}, SliceId(3), {WorkPurpose::kTrain, 1, 8, 4}, 4));
  flows.insert(FlowOf({JobUid(7), 1}, SliceId(3), {WorkPurpose::kTrain, 1, 8, 4}, 4));
  EXPECT_EQ(flows.size(), 6u);
  EXPECT_EQ(flows.count(0), 0u);
}

}  // namespace
}  // namespace starling
