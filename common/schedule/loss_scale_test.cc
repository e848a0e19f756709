#include "common/schedule/loss_scale.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

void CleanSteps(LossScale& scale, uint32_t steps) {
  for (uint32_t i = 0; i < steps; ++i) scale.Clean();
}

bool Overflow(LossScale& scale) { return scale.Overflow(scale.state().log2); }

TEST(LossScaleTest, AnOverflowHalvesAtOnce) {
  LossScale scale;
  EXPECT_EQ(scale.scale(), 65536);
  EXPECT_TRUE(Overflow(scale));
  EXPECT_EQ(scale.scale(), 32768);
  EXPECT_TRUE(Overflow(scale));
  EXPECT_EQ(scale.scale(), 16384);
}

TEST(LossScaleTest, CleanStepsInARowDouble) {
  LossScale scale;
  CleanSteps(scale, LossScale::kCleanSteps - 1);
  EXPECT_EQ(scale.scale(), 65536);
  scale.Clean();
  EXPECT_EQ(scale.scale(), 131072);
  CleanSteps(scale, LossScale::kCleanSteps - 1);
  EXPECT_TRUE(Overflow(scale));  // the clean steps start over
  EXPECT_EQ(scale.scale(), 65536);
  CleanSteps(scale, LossScale::kCleanSteps - 1);
  EXPECT_EQ(scale.scale(), 65536);
  scale.Clean();
  EXPECT_EQ(scale.scale(), 131072);
}

TEST(LossScaleTest, StaysWithinItsBounds) {
  LossScale scale;
  CleanSteps(scale, 20 * LossScale::kCleanSteps);
  EXPECT_EQ(scale.scale(), 0x1p24f);
  EXPECT_TRUE(Overflow(scale));
  EXPECT_EQ(scale.scale(), 0x1p23f);
  CleanSteps(scale, LossScale::kCleanSteps - 1);
  EXPECT_EQ(scale.scale(), 0x1p23f) << "steps at the bound do not count";
}

TEST(LossScaleTest, AnOverflowForEverEnds) {
  LossScale scale;
  int halved = 0;
  while (Overflow(scale)) ++halved;
  EXPECT_EQ(halved, LossScale::kFirstLog2 - LossScale::kLeastLog2);
  EXPECT_EQ(scale.scale(), 1);
  EXPECT_FALSE(Overflow(scale));
  EXPECT_EQ(scale.scale(), 1);
  EXPECT_THAT(LossScale::Stopped(17, WorkerId(3)),
              HasSubstr("step 17, by worker 3, overflowed with the loss scaled by 1, the least"));
}

// Workers that all used one scale, and all overflowed, halve it once.
TEST(LossScaleTest, AnOverflowUnderAGreaterScaleWasAnswered) {
  LossScale scale;
  EXPECT_TRUE(scale.Overflow(16));
  EXPECT_TRUE(scale.Overflow(16));
  EXPECT_EQ(scale.scale(), 32768);
  EXPECT_TRUE(scale.Overflow(15));
  EXPECT_EQ(scale.scale(), 16384);
  // Computed before the scale was doubled: it is certainly too large.
  EXPECT_TRUE(scale.Overflow(10));
  EXPECT_EQ(scale.scale(), 8192);
  while (Overflow(scale)) {
  }
  EXPECT_TRUE(scale.Overflow(1));
  EXPECT_FALSE(scale.Overflow(0));
}

// A copy of the state taken midway continues like the original.
TEST(LossScaleTest, TheStateIsAllThereIs) {
  std::mt19937 random(7);
  LossScale scale;
  for (int i = 0; i < 50'000; ++i) {
    LossScale other;
    ASSERT_TRUE(other.Restore(scale.state()));
    if (random() % 1500 == 0) {
      EXPECT_EQ(Overflow(scale), Overflow(other));
    } else {
      scale.Clean();
      other.Clean();
    }
    ASSERT_EQ(scale.state(), other.state());
    ASSERT_EQ(scale.scale(), other.scale());
  }
}

TEST(LossScaleTest, RefusesAStateOutOfBounds) {
  LossScale scale;
  EXPECT_TRUE(Overflow(scale));
  const LossScale::State before = scale.state();
  for (const LossScale::State& bad :
       {LossScale::State{-1, 0}, LossScale::State{25, 0}, LossScale::State{24, 1},
        LossScale::State{10, LossScale::kCleanSteps}}) {
    EXPECT_FALSE(scale.Restore(bad));
    EXPECT_EQ(scale.state(), before);
  }
}

}  // namespace
}  // namespace starling
