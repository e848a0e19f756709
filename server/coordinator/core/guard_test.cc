// What a job's guard does to its policy, given the reports of workers and shards.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CoordinatorGuardTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    cluster.train_samples = 400;  // 100 batches
    cluster.train_loss = 1;
    cluster.AddShard("ps-0");
    Workers(2);
  }

  static JobSpec Guarded(const std::string& name) {
    JobSpec spec = MiniCluster::Spec(name, Policy::ASYNC, 2, 2);
    Guard& guard = *spec.mutable_policy()->mutable_guard();
    guard.set_window(8);
    guard.set_loss_factor(2);
    guard.set_staleness(3);
    return spec;
  }

  bool RunToStep(const std::string& job, uint64_t step) {
    return cluster.RunUntil([&] { return cluster.Status(job).step() >= step; });
  }
  bool RunToPolicy(const std::string& job, const std::string& policy) {
    return cluster.RunUntil([&] { return cluster.Status(job).policy() == policy; });
  }
};

TEST_F(CoordinatorGuardTest, TightensStepByStepAndSaysWhy) {
  Submit(Guarded("a"));
  ASSERT_TRUE(RunToStep("a", 30));
  EXPECT_EQ(cluster.Status("a").policy(), "async");
  cluster.train_loss = 5;
  ASSERT_TRUE(RunToPolicy("a", "ssp(3)"));
  ASSERT_TRUE(RunToPolicy("a", "bsp"));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 100);
  EXPECT_THAT(
      cluster.JobLog("a"),
      HasSubstr("ssp(3), was requested: guard: the median train loss of the last 8 batches, "
                "5.0000, is above 2.0"));
  const JobStatus status = cluster.Status("a");
  ASSERT_EQ(status.policies_size(), 3);
  EXPECT_EQ(status.policies(0).by(), "job file");
  EXPECT_THAT(status.policies(1).by(), HasSubstr("guard: the median train loss"));
  EXPECT_EQ(status.policies(2).policy().kind(), Policy::BSP);
  EXPECT_GT(status.policies(2).step(), status.policies(1).step());
}

TEST_F(CoordinatorGuardTest, TightensWhenUpdatesComeTooLate) {
  JobSpec spec = Guarded("late");
  spec.mutable_policy()->mutable_guard()->set_lag(6);
  cluster.recent_lag = 6;
  Submit(spec);
  ASSERT_TRUE(RunToStep("late", 100));
  EXPECT_EQ(cluster.Status("late").policy(), "async");
  cluster.recent_lag = 7;
  ASSERT_TRUE(RunToPolicy("late", "ssp(3)"));
  EXPECT_THAT(cluster.JobLog("late"), HasSubstr("guard: updates came up to 7 updates late for "));
}

TEST_F(CoordinatorGuardTest, AJobWithoutOneKeepsItsPolicy) {
  JobSpec spec = Guarded("alone");
  spec.mutable_policy()->clear_guard();
  Submit(spec);
  ASSERT_TRUE(RunToStep("alone", 30));
  cluster.train_loss = 5;
  ASSERT_TRUE(Ends("alone", SUCCEEDED));
  EXPECT_EQ(cluster.Status("alone").policies_size(), 1);
  EXPECT_THAT(cluster.JobLog("alone"), Not(HasSubstr("guard")));
}

TEST_F(CoordinatorGuardTest, ItsTrendSurvivesARestart) {
  for (const uint64_t step : {30, 110}) {  // in the first epoch, and in the second
    const std::string name = absl::StrCat("restarted-", step);
    cluster.train_loss = 1;
    Submit(Guarded(name));
    ASSERT_TRUE(RunToStep(name, step));
    cluster.train_loss = 5;
    cluster.StartCoordinator();
    ASSERT_TRUE(RunToPolicy(name, "ssp(3)")) << cluster.JobLog(name);
    ASSERT_TRUE(AskJob<event::CancelJob>(name).ok());
  }
}

// The first window's level alone would allow what is usual by now.
TEST_F(CoordinatorGuardTest, WhatIsStoredOfItsTrendFollowsTheLoss) {
  cluster.train_samples = 4000;
  cluster.train_loss = 10;
  Submit(Guarded("falls"));
  ASSERT_TRUE(RunToStep("falls", 20));
  cluster.train_loss = 3;
  ASSERT_TRUE(RunToStep("falls", 300));  // in the first epoch
  cluster.train_loss = 8;
  cluster.StartCoordinator();
  ASSERT_TRUE(RunToPolicy("falls", "ssp(3)")) << cluster.JobLog("falls");
}

TEST_F(CoordinatorGuardTest, MoreWorkersThanABspStepHasPartsAreRefused) {
  JobSpec spec = Guarded("many");
  spec.set_workers_min(5);
  spec.set_workers_max(5);
  EXPECT_THAT(std::string(SubmitError(spec).message()),
              HasSubstr("cannot share the 4 micro-batches"));
}

}  // namespace
}  // namespace starling::coordinator
