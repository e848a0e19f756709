#include "kernels/cuda/plan_timing.h"

#include "gtest/gtest.h"

namespace starling::cuda {
namespace {

TEST(PlanTimingTest, TheMedianIgnoresOneSlowRun) {
  EXPECT_EQ(Median({2, 900, 1}), 2);
  EXPECT_EQ(Median({4, 1, 3, 2}), 3);
  EXPECT_EQ(Median({5}), 5);
}

TEST(PlanTimingTest, TheLeastMedianWins) {
  EXPECT_EQ(Fastest({{5, 5, 5}, {4, 4, 90}, {3, 80, 80}}), 1u);
  EXPECT_EQ(Fastest({{5, 5, 5}, {3, 3, 3}, {3, 3, 3}}), 1u) << "of equal ones the first";
  EXPECT_EQ(Fastest({{1, 1, 1}, {2, 2, 2}}), 0u);
}

TEST(PlanTimingTest, TheHeuristicsChoiceStaysUnlessAnotherIsClearlyFaster) {
  EXPECT_EQ(Fastest({{1.00f}, {0.98f}}), 0u);
  EXPECT_EQ(Fastest({{1.00f}, {0.98f}, {0.96f}}), 2u);
}

TEST(PlanTimingTest, PlansThatFailedAreNotTaken) {
  EXPECT_EQ(Fastest({{}, {7}, {6}}), 2u);
  EXPECT_EQ(Fastest({{5}, {}, {}}), 0u);
  EXPECT_EQ(Fastest({{}, {}}), 0u) << "none ran: the heuristics' choice";
}

}  // namespace
}  // namespace starling::cuda
