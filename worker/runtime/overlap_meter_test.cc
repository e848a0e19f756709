#include "worker/runtime/overlap_meter.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(OverlapMeter, CountsOnlyWhatIsUnderWayWhileComputing) {
  OverlapMeter meter(absl::Seconds(10));
  meter.Sent(ShardId(1), 1, At(0));  // before the unit: not counted
  meter.UnitBegan(At(1));
  meter.Answered(ShardId(1), 1, At(2));  // one second under way
  meter.Sent(ShardId(1), 2, At(3));
  meter.Sent(ShardId(2), 2, At(4));
  meter.Answered(ShardId(1), 2, At(5));
  meter.Answered(ShardId(2), 2, At(6));  // three more
  meter.UnitEnded(absl::Seconds(1), 100, At(7));
  EXPECT_DOUBLE_EQ(meter.hidden_share(At(7)), 0.75);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(6)), 20);
}

TEST(OverlapMeter, ForgetsOldUnitsAndDeadStreams) {
  OverlapMeter meter(absl::Seconds(1));
  meter.UnitBegan(At(0));
  meter.Sent(ShardId(1), 1, At(0));
  meter.Forget(ShardId(1), At(1));
  meter.UnitEnded(absl::Seconds(5), 10, At(3));  // waits longer than anything was under way: clipped
  EXPECT_DOUBLE_EQ(meter.hidden_share(At(3)), 0);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(3)), 10);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(9)), 0);
}

TEST(OverlapMeter, NothingUnderWayHidesNothing) {
  OverlapMeter meter(absl::Seconds(1));
  EXPECT_DOUBLE_EQ(meter.hidden_share(At(1)), 0);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(1)), 0);
}

}  // namespace
}  // namespace starling
