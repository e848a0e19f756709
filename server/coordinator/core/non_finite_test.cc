// Losses and gradients that are not finite: the job goes on without a worker that alone finds them,
// and ends, or goes back, where others find the same.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class NonFiniteTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    cluster.train_samples = 4000;  // 1,000 steps in an epoch
    cluster.AddShard("ps-0");
  }
  void Begin(int workers, Policy::Kind policy = Policy::BSP) {
    Workers(workers);
    Submit(MiniCluster::Spec("a", policy, 1, 4));
    ASSERT_TRUE(Has(static_cast<uint32_t>(workers)));
    ASSERT_TRUE(cluster.RunUntil([&] { return Step() >= 3; }));
  }
  bool Has(uint32_t workers) {
    return cluster.RunUntil([&] { return cluster.Status("a").workers() == workers; });
  }
  uint64_t Step() { return cluster.Status("a").step(); }
  // The worker finds something that others then do: times `first` to `last`.
  void IsBlamed(const std::string& name, int first, int last) {
    for (int time = first; time <= last; ++time) {
      ASSERT_TRUE(cluster.RunUntil([&] { return cluster.workers[name].run.job_uid() == 1; }));
      cluster.RunFor(absl::Seconds(0.2));
      Finds(name, Step() + 40);  // beyond what leases of others have
      const std::string said = absl::StrCat(name, " did not, time ", time);
      ASSERT_TRUE(
          cluster.RunUntil([&] { return cluster.JobLog("a").find(said) != std::string::npos; }));
    }
  }
  void Silence(const std::string& name) {
    cluster.workers[name].alive = false;
    cluster.RunFor(absl::Seconds(6));
    EXPECT_EQ(StateOf(name), "lost");
  }
  ListWorkersReply List() {
    return std::get<ListWorkersReply>(cluster.Ask<event::ListWorkers>(ListWorkersRequest()));
  }
  std::string StateOf(const std::string& name) {
    const ListWorkersReply list = List();
    for (const WorkerStatus& worker : list.workers()) {
      if (worker.name() == name) return worker.state();
    }
    return "";
  }
  std::string Cause(const std::string& job = "a") {
    ExplainRequest request;
    request.set_name(job);
    const auto reply = std::get<ExplainReply>(cluster.Ask<event::Explain>(request));
    return reply.findings().empty() ? "" : reply.findings(0).cause();
  }
};

class NonFiniteInPolicyTest : public NonFiniteTest,
                              public ::testing::WithParamInterface<Policy::Kind> {};

TEST_P(NonFiniteInPolicyTest, AWorkerIsAskedAgainOnceOthersHaveDoneTheStep) {
  Begin(2, GetParam());
  Finds("worker-1", 200);
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  EXPECT_THAT(cluster.Status("a").reason(), AllOf(HasSubstr("goes on without worker-1"),
                                                  HasSubstr("step 200, worker-1: not finite")));
  EXPECT_EQ(Cause(), "not-finite");
  ASSERT_TRUE(Has(2));
  EXPECT_GT(Step(), 200u);
  EXPECT_EQ(cluster.Status("a").reason(), "");
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr("others found finite values where worker-1 did not, time 1"));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(StateOf("worker-1"), "idle");
  EXPECT_EQ(cluster.covered[1][1].size(), 1000u) << "its work went to others";
}

INSTANTIATE_TEST_SUITE_P(Policies, NonFiniteInPolicyTest,
                         ::testing::Values(Policy::BSP, Policy::SSP, Policy::ASYNC));

TEST_F(NonFiniteTest, TheThirdTimeTheWorkerIsQuarantined) {
  Begin(2);
  IsBlamed("worker-1", 1, 2);
  EXPECT_TRUE(Has(2));
  IsBlamed("worker-1", 3, 3);
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  EXPECT_THAT(
      cluster.Status("a").reason(),
      HasSubstr("worker-1 is quarantined: what it computed for job a was not finite 3 times "
                "where others found finite values, last in step "));
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-1 is quarantined"));
  EXPECT_EQ(Cause(), "quarantined");
  const auto stays = [&] {
    cluster.RunFor(absl::Seconds(20));
    EXPECT_EQ(cluster.Status("a").workers(), 1u);
    EXPECT_EQ(StateOf("worker-1"), "quarantined");
    ASSERT_EQ(List().warnings_size(), 1);
    EXPECT_THAT(List().warnings(0), HasSubstr("worker-1 is quarantined"));
  };
  stays();
  cluster.StartCoordinator();
  stays();
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  Submit(Ssp("b", 2, 2));
  EXPECT_THAT(cluster.Status("b").reason(),
              HasSubstr("the cluster has 1, and 1 that no job uses (quarantined: "));
  cluster.Rejoin("worker-1");
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  EXPECT_EQ(List().warnings_size(), 0);
}

// It registers anew after each silence.
TEST_F(NonFiniteTest, AProcessIsBlamedUntilItIsStartedAgain) {
  Begin(2);
  const uint64_t process = cluster.workers["worker-1"].process;
  IsBlamed("worker-1", 1, 2);
  Silence("worker-1");
  cluster.AddWorker("worker-1", /*gpu=*/false, process);
  IsBlamed("worker-1", 3, 3);
  EXPECT_EQ(StateOf("worker-1"), "quarantined");
  Silence("worker-1");
  cluster.AddWorker("worker-1", /*gpu=*/false, process);
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(StateOf("worker-1"), "quarantined");
  cluster.Rejoin("worker-1");
  EXPECT_TRUE(Has(2));
  IsBlamed("worker-1", 1, 2);
  EXPECT_TRUE(Has(2)) << "what the process before did does not count";
}

TEST_F(NonFiniteTest, OneThatWasStartedAgainIsNotBlamedForWhatItFoundBefore) {
  Begin(2);
  const uint64_t step = Step() + 40;
  Finds("worker-1", step);
  cluster.Rejoin("worker-1");
  ASSERT_TRUE(cluster.RunUntil([&] { return Step() > step; }));
  EXPECT_TRUE(Has(2));
  EXPECT_THAT(cluster.JobLog("a"), Not(HasSubstr("others found")));
}

// Its process was started again, which is no other worker.
TEST_F(NonFiniteTest, OneWorkerAloneDoesNotConvictTheJob) {
  Begin(2);
  const uint64_t step = Step() + 40;
  Finds("worker-1", step);
  cluster.Rejoin("worker-1");
  Finds("worker-1", step);
  ASSERT_TRUE(cluster.RunUntil([&] { return Step() > step; }));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
}

TEST_F(NonFiniteTest, AQuarantinedWorkerLeavesTheJobThatItHasMeanwhile) {
  Begin(2);
  IsBlamed("worker-1", 1, 2);
  ASSERT_TRUE(Has(2));
  const uint64_t step = Step() + 60;
  Finds("worker-1", step);
  Submit(Ssp("b", 1, 1));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("b").workers() == 1; }));
  EXPECT_LT(Step(), step);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("b").workers() == 0; }));
  EXPECT_EQ(StateOf("worker-1"), "quarantined");
  EXPECT_THAT(cluster.Status("b").reason(), HasSubstr("worker-1 is quarantined"));
  cluster.AddWorker("worker-2");
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Status("b").workers() == 1; }));
}

TEST_F(NonFiniteTest, AQuarantinedWorkerIsNoLossToAJobThatItCouldNotServe) {
  Begin(2);
  IsBlamed("worker-1", 1, 3);
  cluster.AddWorker("gpu-0", /*gpu=*/true);
  JobSpec spec = Ssp("b", 1, 2);
  spec.set_device(DEVICE_GPU);
  Submit(spec);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("b").workers() == 1; }));
  EXPECT_NE(Cause("b"), "quarantined");
}

TEST_F(NonFiniteTest, TheLastWorkerIsNotQuarantined) {
  Begin(2);
  IsBlamed("worker-1", 1, 2);
  ASSERT_TRUE(Has(2));
  Finds("worker-1", Step() + 40);
  cluster.workers["worker-0"].draining = true;
  ASSERT_TRUE(Has(2));
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-1 did not, time 3"));
  EXPECT_EQ(StateOf("worker-1"), "training");
}

// What others found there began with other values, so that the job may be to blame.
TEST_F(NonFiniteTest, ExceptInBspTheJobAloneDoesWithoutTheWorker) {
  Begin(2, Policy::SSP);
  IsBlamed("worker-1", 1, 3);
  cluster.RunFor(absl::Seconds(15));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("worker-1 is quarantined for this job"));
  EXPECT_EQ(Cause(), "quarantined");
  EXPECT_EQ(StateOf("worker-1"), "idle");
  EXPECT_EQ(List().warnings_size(), 0);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  Submit(Ssp("b", 2, 2));
  EXPECT_TRUE(Ends("b", SUCCEEDED));
}

TEST_F(NonFiniteTest, ExceptInBspNobodyIsQuarantinedWhereSeveralAreBlamed) {
  Begin(2, Policy::SSP);
  IsBlamed("worker-0", 1, 1);
  IsBlamed("worker-1", 1, 4);
  EXPECT_TRUE(Has(2));
  EXPECT_THAT(cluster.JobLog("a"), Not(HasSubstr("worker-1 is quarantined")));
}

TEST_F(NonFiniteTest, WhatOthersFindTooIsTheJobsOwn) {
  Begin(3);
  Finds("worker-1", 900);
  Finds("worker-0", 901);
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  Finds("worker-2", 900);
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_EQ(
      cluster.Status("a").reason(),
      "step 900, worker-2: not finite; worker-1 found the same before, so it is the job's own");
  cluster.RunFor(absl::Seconds(1));
  for (const char* name : {"worker-0", "worker-1", "worker-2"}) EXPECT_EQ(StateOf(name), "idle");
  EXPECT_TRUE(cluster.shards["ps-0"].reports.Holds(1)) << "the last good values stay";
}

TEST_F(NonFiniteTest, NobodyIsQuarantinedForWhatIsTheJobsOwn) {
  Begin(2);
  IsBlamed("worker-1", 1, 2);
  ASSERT_TRUE(Has(2));
  Finds("worker-1", 900);
  Finds("worker-0", 900);
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(StateOf("worker-1"), "idle");
}

// A worker repeats its fault until it has released the job.
TEST_F(NonFiniteTest, ARepeatedReportIsNotASecondOne) {
  Begin(2);
  cluster.workers["worker-1"].stubborn = true;
  Finds("worker-1", 900);
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  EXPECT_NE(cluster.workers["worker-1"].fault.kind(), Fault::KIND_UNSPECIFIED);
  cluster.workers["worker-1"].stubborn = false;
  cluster.StartCoordinator();
  EXPECT_TRUE(Has(2)) << "a new coordinator suspects nobody";
}

TEST_F(NonFiniteTest, AloneItDoesTheStepAgain) {
  Begin(1);
  Finds("worker-0", 900);
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  EXPECT_EQ(cluster.Status("a").workers(), 0u);
  cluster.RunFor(absl::Seconds(1));
  ASSERT_EQ(cluster.Status("a").workers(), 1u);
  Finds("worker-0", 900);
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("it found the same before"));
}

// It was asked again while it was alone; now another one can do the step.
TEST_F(NonFiniteTest, WithCompanyItDoesNotConvictTheJobEither) {
  Begin(1);
  Finds("worker-0", 900);
  cluster.RunFor(absl::Seconds(1));
  ASSERT_EQ(cluster.Status("a").workers(), 1u) << "asked again";
  cluster.AddWorker("worker-1");
  ASSERT_TRUE(Has(2));
  Finds("worker-0", 900);
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  ASSERT_TRUE(cluster.RunUntil([&] { return Step() > 900; }, absl::Minutes(2)));
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-0 did not, time 1"));
}

TEST_F(NonFiniteTest, AloneItIsNotBlamedIfItSucceedsThen) {
  Begin(1);
  for (int i = 0; i < 5; ++i) {
    const uint64_t step = Step() + 10;
    Finds("worker-0", step);
    EXPECT_EQ(cluster.Status("a").workers(), 0u);
    ASSERT_TRUE(cluster.RunUntil([&] { return Step() > step; }));
  }
  Finds("worker-0", 0);  // done long ago
  ASSERT_TRUE(Has(1));
  EXPECT_THAT(cluster.JobLog("a"), Not(HasSubstr("others found")));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(NonFiniteTest, WhoMayComeBackIsAwaited) {
  Begin(2, Policy::SSP);
  cluster.workers["worker-0"].alive = false;
  ASSERT_TRUE(Has(1));
  Finds("worker-1", 900);
  cluster.RunFor(absl::Seconds(3));
  EXPECT_EQ(cluster.Status("a").workers(), 0u);
  cluster.Rejoin("worker-0");
  ASSERT_TRUE(Has(1));
  EXPECT_EQ(cluster.workers["worker-1"].run.job_uid(), 0u);
  cluster.workers["worker-0"].alive = false;
  ASSERT_TRUE(Has(0));
  ASSERT_TRUE(Has(1)) << "nobody else came";
  EXPECT_EQ(cluster.workers["worker-1"].run.job_uid(), 1u);
  cluster.RunFor(absl::Seconds(10));
  Finds("worker-1", 950);
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").workers(), 1u) << "one that was lost long ago is not awaited";
}

}  // namespace
}  // namespace starling::coordinator
