#include "common/schedule/learning_rate.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

LearningRate Make(const Schedule& schedule, uint64_t steps = 100) {
  return LearningRate::Make(schedule, steps).value();
}

TEST(LearningRateTest, ConstantWithLinearWarmup) {
  Schedule schedule;
  schedule.set_constant(0.1);
  EXPECT_EQ(Make(schedule).At(0), 0.1f);
  EXPECT_EQ(Make(schedule).At(99), 0.1f);
  schedule.set_warmup_steps(4);
  EXPECT_FLOAT_EQ(Make(schedule).At(0), 0.025f);
  EXPECT_FLOAT_EQ(Make(schedule).At(2), 0.075f);
  EXPECT_EQ(Make(schedule).At(3), 0.1f);
  EXPECT_EQ(Make(schedule).At(4), 0.1f);
}

TEST(LearningRateTest, StepFallsByItsFactor) {
  Schedule schedule;
  schedule.mutable_step()->set_initial(0.8);
  schedule.mutable_step()->set_factor(0.5);
  schedule.mutable_step()->set_every_steps(10);
  EXPECT_EQ(Make(schedule).At(9), 0.8f);
  EXPECT_EQ(Make(schedule).At(10), 0.4f);
  EXPECT_EQ(Make(schedule).At(35), 0.1f);
}

TEST(LearningRateTest, CosineGoesFromPeakToFloorAfterWarmup) {
  Schedule schedule;
  schedule.mutable_cosine()->set_peak(1.0);
  schedule.mutable_cosine()->set_floor(0.2);
  schedule.set_warmup_steps(20);
  const LearningRate rate = Make(schedule, 120);
  EXPECT_FLOAT_EQ(rate.At(9), 0.5f);
  EXPECT_EQ(rate.At(20), 1.0f);
  EXPECT_FLOAT_EQ(rate.At(70), 0.6f);  // halfway
  EXPECT_FLOAT_EQ(rate.At(45), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2);
  EXPECT_FLOAT_EQ(rate.At(120), 0.2f);
  EXPECT_FLOAT_EQ(rate.At(500), 0.2f);
}

TEST(LearningRateTest, AWarmupAsLongAsTheJobNeverDividesByZero) {
  Schedule schedule;
  schedule.mutable_cosine()->set_peak(1.0);
  schedule.set_warmup_steps(100);
  EXPECT_EQ(Make(schedule, 100).At(99), 1.0f);
  EXPECT_EQ(Make(schedule, 100).At(100), 1.0f);
}

TEST(LearningRateTest, BadSchedulesAreNamed) {
  Schedule schedule;
  EXPECT_THAT(LearningRate::Make(schedule, 1).status().message(),
              HasSubstr("one of constant, step and cosine"));
  schedule.set_constant(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(LearningRate::Make(schedule, 1).status().message(), HasSubstr("constant is nan"));
  schedule.set_constant(-1);
  EXPECT_THAT(LearningRate::Make(schedule, 1).status().message(), HasSubstr("constant is -1"));
  schedule.mutable_step()->set_initial(1);
  EXPECT_THAT(LearningRate::Make(schedule, 1).status().message(), HasSubstr("every_steps is 0"));
  schedule.set_constant(1);
  schedule.set_warmup_steps(-1);
  EXPECT_THAT(LearningRate::Make(schedule, 1).status().message(), HasSubstr("warmup_steps is -1"));
}

}  // namespace
}  // namespace starling
