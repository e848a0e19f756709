#include "common/data_plan/job_steps.h"

#include "gtest/gtest.h"

namespace starling {
namespace {

JobSpec Spec(uint32_t global, uint32_t epochs, uint64_t steps, uint32_t every = 0) {
  JobSpec spec;
  spec.mutable_batch()->set_global(global);
  spec.mutable_stop()->set_epochs(epochs);
  spec.mutable_stop()->set_steps(steps);
  spec.mutable_evaluate()->set_every_epochs(every);
  return spec;
}

TEST(JobSteps, EpochsAloneAreAllFull) {
  const JobSpec spec = Spec(32, 3, 0);
  EXPECT_EQ(StepsInFullEpoch(spec, 100), 4u);
  EXPECT_EQ(JobSteps(spec, 100), 12u);
  EXPECT_EQ(JobEpochs(spec, 100), 3u);
  EXPECT_EQ(StepsInEpoch(spec, 100, 2), 4u);
  EXPECT_EQ(StepsInEpoch(spec, 100, 3), 0u);
}

TEST(JobSteps, StepsCutTheLastEpochShort) {
  const JobSpec spec = Spec(32, 3, 9);
  EXPECT_EQ(JobSteps(spec, 100), 9u);
  EXPECT_EQ(JobEpochs(spec, 100), 3u);
  EXPECT_EQ(StepsInEpoch(spec, 100, 0), 4u);
  EXPECT_EQ(StepsInEpoch(spec, 100, 1), 4u);
  EXPECT_EQ(StepsInEpoch(spec, 100, 2), 1u);
}

TEST(JobSteps, StepsAtAnEpochsEndLeaveNoEmptyEpoch) {
  const JobSpec spec = Spec(32, 0, 8);
  EXPECT_EQ(JobEpochs(spec, 100), 2u);
  EXPECT_EQ(StepsInEpoch(spec, 100, 1), 4u);
  EXPECT_EQ(StepsInEpoch(spec, 100, 2), 0u);
}

TEST(JobSteps, MoreStepsThanEpochsHaveChangeNothing) {
  EXPECT_EQ(JobSteps(Spec(32, 2, 1000), 100), 8u);
}

TEST(JobSteps, EvaluatesEveryNthAndAtTheEnd) {
  const JobSpec spec = Spec(32, 5, 0, 2);
  EXPECT_FALSE(EvaluatesAt(spec, 100, 0));
  EXPECT_TRUE(EvaluatesAt(spec, 100, 1));
  EXPECT_FALSE(EvaluatesAt(spec, 100, 2));
  EXPECT_TRUE(EvaluatesAt(spec, 100, 3));
  EXPECT_TRUE(EvaluatesAt(spec, 100, 4));
  EXPECT_FALSE(EvaluatesAt(spec, 100, 5));
  EXPECT_FALSE(EvaluatesAt(Spec(32, 5, 0), 100, 4));
}

}  // namespace
}  // namespace starling
