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

TEST(LossScaleTest, AnOverflowHalvesAtOnce) {
  LossScale scale;
  EXPECT_EQ(scale.scale(), 65536);
  EXPECT_TRUE(scale.Overflow());
  EXPECT_EQ(scale.scale(), 32768);
  EXPECT_TRUE(scale.Overflow());
  EXPECT_EQ(scale.scale(), 16384);
}

TEST(LossScaleTest, CleanStepsInARowDouble) {
  LossScale scale;
  CleanSteps(scale, LossScale::kCleanSteps - 1);
  EXPECT_EQ(scale.scale(), 65536);
  scale.Clean();
  EXPECT_EQ(scale.scale(), 131072);
  CleanSteps(scale, LossScale::kCleanSteps - 1);
  EXPECT_TRUE(scale.Overflow());  // they begin anew
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
  EXPECT_TRUE(scale.Overflow());
  EXPECT_EQ(scale.scale(), 0x1p23f);
  CleanSteps(scale, LossScale::kCleanSteps - 1);
  EXPECT_EQ(scale.scale(), 0x1p23f) << "steps at the bound do not count";
}

TEST(LossScaleTest, AnOverflowForEverEnds) {
  LossScale scale;
  int halved = 0;
  while (scale.Overflow()) ++halved;
  EXPECT_EQ(halved, LossScale::kFirstLog2 - LossScale::kLeastLog2);
  EXPECT_EQ(scale.scale(), 1);
  EXPECT_FALSE(scale.Overflow());
  EXPECT_EQ(scale.scale(), 1);
  EXPECT_THAT(LossScale::Stopped(17), HasSubstr("step 17 overflowed with the loss scaled by 1, the least"));
}

// Whoever takes the state over in the middle goes on as the first one does.
TEST(LossScaleTest, TheStateIsAllThereIs) {
  std::mt19937 random(7);
  LossScale scale;
  for (int i = 0; i < 50'000; ++i) {
    LossScale other;
    ASSERT_TRUE(other.Restore(scale.state()));
    if (random() % 1500 == 0) {
      EXPECT_EQ(scale.Overflow(), other.Overflow());
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
  EXPECT_TRUE(scale.Overflow());
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
