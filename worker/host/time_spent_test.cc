#include "worker/host/time_spent.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

enum class Mood { kGlad, kSad };

absl::Time Instant(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(TimeSpent, AddsUpByState) {
  TimeSpent<Mood> time;
  EXPECT_EQ(time.seconds(Mood::kGlad, Instant(5)), 0);
  time.Begin(Mood::kGlad, Instant(10));
  time.Become(Mood::kSad, Instant(12));
  time.Become(Mood::kSad, Instant(13));
  time.Become(Mood::kGlad, Instant(16));
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kGlad, Instant(17)), 3);
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kSad, Instant(17)), 4);
  time.Begin(Mood::kGlad, Instant(20));
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kSad, Instant(21)), 0);
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kGlad, Instant(21)), 1);
}

TEST(TimeSpent, AClockThatGoesBackTakesNothingAway) {
  TimeSpent<Mood> time;
  time.Begin(Mood::kGlad, Instant(10));
  time.Become(Mood::kSad, Instant(4));
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kGlad, Instant(4)), 0);
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kSad, Instant(5)), 1);
}

}  // namespace
}  // namespace starling
