#include "worker/executor/lane_times.h"

#include <gtest/gtest.h>

#include <thread>

namespace starling {
namespace {

TEST(LaneTimes, TimeGoesToWhatWasDoneSinceTheLastCall) {
  LaneTimes times;
  times.Begin(1000);
  times.Spend(1010, LanePhase::kData);
  times.Spend(1050, LanePhase::kValues, LanePhase::kHeld, 30);
  times.Spend(1150, LanePhase::kForward);
  EXPECT_EQ(times.pending_us(1155), 5u);
  times.Spend(1160, LanePhase::kData);
  times.End();
  EXPECT_EQ(times.spent_us(LanePhase::kData), 20u);
  EXPECT_EQ(times.spent_us(LanePhase::kValues), 10u);
  EXPECT_EQ(times.spent_us(LanePhase::kHeld), 30u);
  EXPECT_EQ(times.spent_us(LanePhase::kForward), 100u);
  EXPECT_EQ(times.pending_us(2000), 0u);
}

TEST(LaneTimes, APartIsNeverMoreThanTheWhole) {
  LaneTimes times;
  times.Begin(0);
  times.Spend(10, LanePhase::kBackward, LanePhase::kPush, 50);
  EXPECT_EQ(times.spent_us(LanePhase::kBackward), 0u);
  EXPECT_EQ(times.spent_us(LanePhase::kPush), 10u);
}

TEST(LaneTimes, OverlapIsWhatBothHave) {
  EXPECT_EQ(Overlap(10, 20, 15, 30), 5u);
  EXPECT_EQ(Overlap(10, 20, 0, 12), 2u);
  EXPECT_EQ(Overlap(10, 20, 12, 14), 2u);
  EXPECT_EQ(Overlap(12, 14, 10, 20), 2u);
  EXPECT_EQ(Overlap(10, 20, 20, 30), 0u);
  EXPECT_EQ(Overlap(10, 20, 0, 0), 0u);
}

TEST(LaneTimes, OutsideOfUnitsNothingCounts) {
  LaneTimes times;
  times.Spend(10, LanePhase::kForward);
  times.Begin(100);
  times.End();
  times.Spend(200, LanePhase::kForward);
  EXPECT_EQ(times.spent_us(LanePhase::kForward), 0u);
}

TEST(LaneTimes, MayBeReadMeanwhile) {
  LaneTimes times;
  std::thread lane([&] {
    times.Begin(0);
    for (uint64_t now = 1; now <= 10'000; ++now) times.Spend(now, LanePhase::kForward);
    times.End();
  });
  uint64_t last = 0;
  while (last < 10'000) {
    const uint64_t spent = times.spent_us(LanePhase::kForward);
    ASSERT_GE(spent, last);
    last = spent;
  }
  lane.join();
}

}  // namespace
}  // namespace starling
