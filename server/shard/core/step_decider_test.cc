#include "server/shard/core/step_decider.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace starling {
namespace {

using Outcome = StepDecider::Outcome;
constexpr PartitionId kFirst(0), kSecond(2), kThird(5);

TEST(ClipScaleTest, ShrinksToTheNormAndNeverStretches) {
  EXPECT_EQ(ClipScale(1, 0, 1), 1);
  EXPECT_EQ(ClipScale(5, 24.9, 1), 1);
  EXPECT_EQ(ClipScale(1, 25, 1), static_cast<float>(1 / (5 + 1e-6)));
  EXPECT_EQ(ClipScale(1, 25, 2), static_cast<float>(1 / (10 + 1e-6)));  // a short batch
  EXPECT_EQ(ClipScale(1e-3, 0, 1), 1);
  EXPECT_GT(ClipScale(1, 1e60, 1), 0);
}

TEST(StepDeciderTest, DecidesWhenTheLastHasReported) {
  StepDecider decider({kFirst, kSecond, kThird});
  EXPECT_EQ(decider.Report(kThird, 0, {4}), Outcome::kWaits);
  EXPECT_EQ(decider.Report(kFirst, 0, {1}), Outcome::kWaits);
  EXPECT_EQ(decider.Missing(), std::vector<PartitionId>{kSecond});
  EXPECT_EQ(decider.Report(kThird, 0, {4}), Outcome::kRepeated);
  EXPECT_EQ(decider.Report(kSecond, 0, {2}), Outcome::kComplete);
  EXPECT_EQ(decider.Decide().norm2, 7);
  EXPECT_EQ(decider.step(), 1);
  EXPECT_EQ(decider.Report(kThird, 0, {4}), Outcome::kDecided);
  EXPECT_EQ(decider.Report(kThird, 1, {0}), Outcome::kWaits);
}

// In the order of the partitions, whatever the order of arrival: 1 is lost beside 2^53 if it is
// added after it, and is not if it is added to another 1 first.
TEST(StepDeciderTest, TheSumDoesNotDependOnTheOrderOfArrival) {
  const double large = std::ldexp(1.0, 53);
  StepDecider decider({kFirst, kSecond, kThird});
  decider.Report(kThird, 0, {large});
  decider.Report(kSecond, 0, {1});
  decider.Report(kFirst, 0, {1});
  EXPECT_EQ(decider.Decide().norm2, large + 2);
  decider.Report(kThird, 1, {1});
  decider.Report(kSecond, 1, {1});
  decider.Report(kFirst, 1, {large});
  EXPECT_EQ(decider.Decide().norm2, large);
}

TEST(StepDeciderTest, WhatIsRefusedChangesNothing) {
  StepDecider decider({kFirst, kSecond});
  decider.Report(kFirst, 0, {1});
  EXPECT_EQ(decider.Report(kFirst, 0, {2}), Outcome::kOtherNorm);
  EXPECT_EQ(decider.Report(kSecond, 1, {1}), Outcome::kOtherStep);
  EXPECT_EQ(decider.Report(kSecond, -1, {1}), Outcome::kOtherStep);
  EXPECT_EQ(decider.Report(kThird, 0, {1}), Outcome::kStranger);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_EQ(decider.Report(kSecond, 0, {bad}), Outcome::kBadNorm);
  EXPECT_EQ(decider.Report(kSecond, 0, {3}), Outcome::kComplete);
  EXPECT_EQ(decider.Decide().norm2, 4);
  decider.Report(kFirst, 1, {1});
  decider.Report(kSecond, 1, {1});
  decider.Decide();
  EXPECT_EQ(decider.Report(kFirst, 0, {1}), Outcome::kOtherStep);  // two steps ago
}

// fp16: one partition's overflow is the whole step's, and who is blamed is the first one's.
TEST(StepDeciderTest, AnOverflowAnywhereSkipsTheStep) {
  const Origin second{ReplicaId(2), WorkerId(2), Incarnation(1), 1};
  const Origin third{ReplicaId(3), WorkerId(3), Incarnation(1), 1};
  StepDecider decider({kFirst, kSecond, kThird});
  decider.Report(kThird, 0, {0, third});
  decider.Report(kSecond, 0, {0, second});
  EXPECT_EQ(decider.Report(kSecond, 0, {0, third}), Outcome::kRepeated);
  EXPECT_EQ(decider.Report(kSecond, 0, {0}), Outcome::kOtherNorm);
  EXPECT_EQ(decider.Report(kFirst, 0, {0}), Outcome::kComplete);
  EXPECT_EQ(decider.Decide().overflowed, second);
  for (const PartitionId p : {kFirst, kSecond, kThird}) decider.Report(p, 1, {0});
  EXPECT_EQ(decider.Decide().overflowed, std::nullopt);
}

TEST(StepDeciderTest, BeginsWhereItsPolicyDoes) {
  StepDecider decider({kFirst, kSecond});
  decider.Report(kFirst, 0, {1});
  decider.BeginAt(7);
  EXPECT_EQ(decider.Report(kFirst, 0, {1}), Outcome::kOtherStep);
  EXPECT_EQ(decider.Report(kFirst, 7, {1}), Outcome::kWaits);
  EXPECT_EQ(decider.Report(kSecond, 7, {2}), Outcome::kComplete);
  EXPECT_EQ(decider.Decide().norm2, 3);
}

}  // namespace
}  // namespace starling
