#include "tools/trace/clock_estimate.h"

#include <gtest/gtest.h>

#include <random>

namespace starling::trace {
namespace {

TEST(ClockEstimate, TheLeastRoundTripCounts) {
  ClockEstimate clock;
  EXPECT_FALSE(clock.known());
  clock.Add(1000, 3000, 502'500);  // asymmetric: 500 us off
  clock.Add(5000, 5100, 505'050);
  clock.Add(7000, 9000, 507'100);
  ASSERT_TRUE(clock.known());
  EXPECT_EQ(clock.OffsetAt(123), 500'000);
  EXPECT_EQ(clock.error(), 50);
  EXPECT_EQ(clock.ToOurs(600'000), 100'000);
}

TEST(ClockEstimate, AnAnswerBeforeItsQuestionIsNotTaken) {
  ClockEstimate clock;
  clock.Add(10, 9, 100);
  EXPECT_FALSE(clock.known());
}

TEST(ClockEstimate, TheirClockMayBeBehindOurs) {
  ClockEstimate clock;
  clock.Add(2'000'000, 2'000'010, 1'000'005);
  EXPECT_EQ(clock.OffsetAt(2'000'000), -1'000'000);
  EXPECT_EQ(clock.ToOurs(0), 1'000'000);
}

// 200 parts per million are 12 ms per minute.
TEST(ClockEstimate, DriftBetweenTheTwoRoundsIsTakenOut) {
  const auto theirs = [](int64_t ours) { return ours + 700'000 + ours / 5000; };
  ClockEstimate clock;
  for (int64_t at = 0; at < 1000; at += 100) clock.Add(at, at + 40, theirs(at + 20));
  clock.BeginSecondRound();
  for (int64_t at = 60'000'000; at < 60'001'000; at += 100) clock.Add(at, at + 40, theirs(at + 20));
  int64_t before = 0;
  for (int64_t ours = 0; ours <= 61'000'000; ours += 7919) {
    const int64_t back = clock.ToOurs(theirs(ours));
    if (ours <= 60'000'000) {
      EXPECT_NEAR(static_cast<double>(back), static_cast<double>(ours), 25) << ours;
      EXPECT_NEAR(static_cast<double>(ours + clock.OffsetAt(ours)),
                  static_cast<double>(theirs(ours)), 25);
    }
    EXPECT_GE(back, before) << "time goes forwards";
    before = back;
  }
}

TEST(ClockEstimate, TheErrorBoundsWhatItIsOff) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    ClockEstimate clock;
    const auto offset = static_cast<int64_t>(random() % 2'000'000) - 1'000'000;
    int64_t now = 10'000'000;
    for (int i = 0; i < 20; ++i) {
      const int64_t there = random() % 3000, back = random() % 3000;
      clock.Add(now, now + there + back, now + there + offset);
      now += there + back + 10;
      if (i == 10) clock.BeginSecondRound();
    }
    EXPECT_LE(std::abs(clock.OffsetAt(10'020'000) - offset), clock.error() + 1);
  }
}

}  // namespace
}  // namespace starling::trace
