#include "worker/host/time_spent.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

enum class Mood { kGlad, kSad };

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(TimeSpent, AddsUpByState) {
  TimeSpent<Mood> time;
  EXPECT_EQ(time.seconds(Mood::kGlad, At(5)), 0);
  time.Begin(Mood::kGlad, At(10));
  time.Become(Mood::kSad, At(12));
  time.Become(Mood::kSad, At(13));
  time.Become(Mood::kGlad, At(16));
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kGlad, At(17)), 3);
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kSad, At(17)), 4);
  time.Begin(Mood::kGlad, At(20));
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kSad, At(21)), 0);
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kGlad, At(21)), 1);
}

TEST(TimeSpent, AClockThatGoesBackTakesNothingAway) {
  TimeSpent<Mood> time;
  time.Begin(Mood::kGlad, At(10));
  time.Become(Mood::kSad, At(4));
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kGlad, At(4)), 0);
  EXPECT_DOUBLE_EQ(time.seconds(Mood::kSad, At(5)), 1);
}

}  // namespace
}  // namespace starling
