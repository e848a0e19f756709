#include "worker/host/overlap_meter.h"

#include <gtest/gtest.h>

#include "common/testing/counting_memory.h"

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
  // Waits longer than anything was under way: clipped.
  meter.UnitEnded(absl::Seconds(5), 10, At(3));
  EXPECT_DOUBLE_EQ(meter.hidden_share(At(3)), 0);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(3)), 10);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(9)), 0);
}

TEST(OverlapMeter, HasTheRoomThatWasMade) {
  CountingMemory memory;
  OverlapMeter meter(absl::Seconds(1));
  meter.Reserve(100);
  const int at_first = memory.allocations();
  for (int i = 0; i < 100; ++i) meter.Sent(ShardId(1 + i % 2), i, At(0));
  EXPECT_EQ(memory.allocations(), at_first);
  for (int i = 100; i < 10000; ++i) meter.Sent(ShardId(1), i, At(0));
  EXPECT_GT(memory.allocations(), at_first);
}

TEST(OverlapMeter, ManyShortUnitsCountAsFewLongOnes) {
  OverlapMeter meter(absl::Seconds(1));
  for (int i = 0; i < 4000; ++i) {  // a millisecond each, a quarter of it waiting
    meter.UnitBegan(At(0.001 * i));
    meter.Sent(ShardId(1), i, At(0.001 * i));
    meter.Answered(ShardId(1), i, At(0.001 * (i + 1)));
    meter.UnitEnded(absl::Microseconds(250), 3, At(0.001 * (i + 1)));
  }
  EXPECT_NEAR(meter.hidden_share(At(4)), 0.75, 1e-6);
  EXPECT_NEAR(meter.samples_per_second(At(4)), 3000, 3000 / 64 + 3);
}

TEST(OverlapMeter, NothingUnderWayHidesNothing) {
  OverlapMeter meter(absl::Seconds(1));
  EXPECT_DOUBLE_EQ(meter.hidden_share(At(1)), 0);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(1)), 0);
}

}  // namespace
}  // namespace starling
