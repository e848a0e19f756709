// The policy of a running job changes: docs/protocol.md, section 8.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::HasSubstr;

class CoordinatorPolicyTest : public CoordinatorTest {
 protected:
  CallReply Set(const std::string& job, Policy::Kind kind, uint32_t staleness = 0,
                uint64_t nonce = 0) {
    SetPolicyRequest request;
    request.set_name(job);
    request.mutable_policy()->set_kind(kind);
    request.mutable_policy()->set_staleness(staleness);
    request.set_nonce(nonce);
    return cluster.Ask<event::SetPolicy>(request);
  }
  absl::Status SetError(const std::string& job, Policy::Kind kind, uint32_t staleness = 0) {
    const CallReply reply = Set(job, kind, staleness);
    const auto* status = std::get_if<absl::Status>(&reply);
    return status == nullptr ? absl::OkStatus() : *status;
  }
  uint64_t SetNumber(const std::string& job, Policy::Kind kind, uint32_t staleness = 0,
                     uint64_t nonce = 0) {
    const CallReply reply = Set(job, kind, staleness, nonce);
    return std::get<SetPolicyReply>(reply).number();
  }
  bool Begins(uint64_t step) {
    return cluster.RunUntil([&] { return cluster.Status("a").step() >= step; });
  }
};

TEST_F(CoordinatorPolicyTest, EachPolicyTakesEffectInOrderAndEachItemCountsOnce) {
  cluster.train_samples = 400;
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 2, 2));
  ASSERT_TRUE(Begins(3));
  EXPECT_EQ(SetNumber("a", Policy::BSP), 1u);
  EXPECT_EQ(SetNumber("a", Policy::ASYNC), 2u);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 100);
  const JobStatus status = cluster.Status("a");
  ASSERT_EQ(status.policies_size(), 3);
  EXPECT_EQ(status.policies(0).by(), "job file");
  EXPECT_TRUE(status.policies(2).in_force());
  EXPECT_GE(status.policies(1).step(), 3u);
  EXPECT_GE(status.policies(2).step(), status.policies(1).step());
  EXPECT_EQ(status.policy(), "async");
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("policy 1, bsp, is in force from clock"));
}

TEST_F(CoordinatorPolicyTest, ARetryIsTheSameChange) {
  cluster.AddShard("ps-0");
  Workers(1);
  cluster.train_samples = 400;
  Submit(Ssp("a", 1, 1));
  EXPECT_EQ(SetNumber("a", Policy::BSP, 0, 77), 1u);
  EXPECT_EQ(SetNumber("a", Policy::ASYNC, 0, 78), 2u);
  EXPECT_EQ(SetNumber("a", Policy::BSP, 0, 77), 1u);
  EXPECT_EQ(SetNumber("a", Policy::ASYNC), 2u);  // the newest already
}

// The answer to "no change" was lost, and another change came before the retry.
TEST_F(CoordinatorPolicyTest, ARetryOfWhatWasInForceAlreadyUndoesNothing) {
  cluster.AddShard("ps-0");
  Workers(1);
  cluster.train_samples = 400;
  Submit(Ssp("a", 1, 1));
  EXPECT_EQ(SetNumber("a", Policy::SSP, 2, 77), 0u);
  EXPECT_EQ(SetNumber("a", Policy::BSP, 0, 78), 1u);
  cluster.StartCoordinator();
  EXPECT_EQ(SetNumber("a", Policy::SSP, 2, 77), 0u);
  EXPECT_EQ(cluster.Status("a").policies_size(), 2);
}

// It starts nothing more of the job that it leaves, but may take long to finish.
TEST_F(CoordinatorPolicyTest, AWorkerOnItsWayToAnotherJobIsNotWaitedFor) {
  cluster.train_samples = 400;
  cluster.AddShard("ps-0");
  Workers(2);
  JobSpec spec = Ssp("a", 1, 2);
  spec.mutable_policy()->set_kind(Policy::BSP);
  Submit(spec);
  ASSERT_TRUE(Begins(3));
  cluster.workers["worker-1"].stubborn = true;
  Submit(Ssp("b", 1, 1));
  cluster.RunFor(absl::Seconds(1));
  ASSERT_THAT(cluster.JobLog("a"), HasSubstr("gives worker-1 to job b"));
  SetNumber("a", Policy::ASYNC);
  EXPECT_TRUE(
      cluster.RunUntil([&] { return cluster.Status("a").policy() == "async"; }, absl::Seconds(5)));
  EXPECT_EQ(cluster.Status("a").workers(), 2u);  // it has not left
}

TEST_F(CoordinatorPolicyTest, OnlyAPolicyThatStepsWereDoneUnderCountsAgainstReproducibility) {
  cluster.train_samples = 400;
  cluster.AddShard("ps-0");
  Workers(1);
  JobSpec spec = Ssp("a", 2, 2);
  Submit(spec);
  EXPECT_FALSE(cluster.Status("a").reproducible());
  SetNumber("a", Policy::BSP);  // it waits for a worker: nothing was done
  EXPECT_TRUE(cluster.Status("a").reproducible());
  cluster.AddWorker("worker-1");
  ASSERT_TRUE(Begins(3));
  EXPECT_TRUE(cluster.Status("a").reproducible());
  for (auto& [name, worker] : cluster.workers) worker.idle_hands = true;
  SetNumber("a", Policy::ASYNC);
  SetNumber("a", Policy::BSP);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").policies(3).in_force(); }));
  EXPECT_TRUE(cluster.Status("a").reproducible()) << "async began and ended at one step";
  SetNumber("a", Policy::ASYNC);
  for (auto& [name, worker] : cluster.workers) worker.idle_hands = false;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").policies(4).in_force(); }));
  EXPECT_FALSE(cluster.Status("a").reproducible());
  EXPECT_THAT(cluster.Status("a").not_reproducible_because(), HasSubstr("async"));
}

TEST_F(CoordinatorPolicyTest, AJobThatWaitsStartsUnderTheNewPolicy) {
  cluster.AddShard("ps-0");
  Workers(1);
  Submit(Ssp("a", 2, 2));
  EXPECT_EQ(SetNumber("a", Policy::BSP), 1u);
  EXPECT_TRUE(cluster.Status("a").policies(1).in_force());
  cluster.AddWorker("worker-1");
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 10);
}

TEST_F(CoordinatorPolicyTest, ACoordinatorThatStartsAgainGoesOnWithTheChange) {
  cluster.train_samples = 400;
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 2, 2));
  ASSERT_TRUE(Begins(3));
  SetNumber("a", Policy::BSP);
  cluster.StartCoordinator();
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").policy() == "bsp"; }));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 100);
}

TEST_F(CoordinatorPolicyTest, AWorkerThatIsSilentWhileOthersHoldIsTakenOff) {
  cluster.train_samples = 400;
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(Begins(3));
  cluster.workers["worker-1"].alive = false;
  SetNumber("a", Policy::BSP);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").policy() == "bsp"; }));
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-1 left"));
}

TEST_F(CoordinatorPolicyTest, BspIsRefusedWhereAShardHasNoMemoryForItsSums) {
  cluster.AddShard("ps-0");
  Workers(1);
  cluster.train_samples = 400;
  cluster.bsp_bytes_more = uint64_t{3} << 20;
  cluster.memory_room = uint64_t{2} << 20;
  Submit(Ssp("a", 1, 1));
  ASSERT_TRUE(Begins(2));
  EXPECT_THAT(
      std::string(SetError("a", Policy::BSP).message()),
      HasSubstr("MiB more on shard ps-0 for sums that wait for others, but 2 MiB are available"));
  EXPECT_TRUE(SetError("a", Policy::ASYNC).ok());
  cluster.memory_room = uint64_t{1} << 30;
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(SetError("a", Policy::BSP).ok());
}

TEST_F(CoordinatorPolicyTest, RefusedWithTheReason) {
  cluster.AddShard("ps-0");
  Workers(1);
  EXPECT_EQ(SetError("a", Policy::BSP).code(), absl::StatusCode::kNotFound);
  JobSpec spec = Ssp("a", 5, 8);
  Submit(spec);
  EXPECT_THAT(std::string(SetError("a", Policy::BSP).message()),
              HasSubstr("workers.min: 5 workers cannot share"));
  EXPECT_THAT(std::string(SetError("a", Policy::SSP, 1u << 30).message()),
              HasSubstr("consistency.ssp.staleness"));
  JobSpec clipped = Ssp("clipped", 1, 1);
  clipped.mutable_clip()->set_norm(1);
  clipped.mutable_clip()->set_scope(Clip::WORKER);
  Submit(clipped);
  EXPECT_THAT(std::string(SetError("clipped", Policy::BSP).message()),
              HasSubstr("clip.scope worker"));
  EXPECT_EQ(cluster.Status("clipped").policies_size(), 1);
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  EXPECT_THAT(std::string(SetError("a", Policy::ASYNC).message()),
              HasSubstr("is over (CANCELLED)"));
}

}  // namespace
}  // namespace starling::coordinator
