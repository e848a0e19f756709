// Whole lives of jobs, as transcripts: what happens, and what the job's log says.
#include "server/coordinator/core/coordinator.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(CoordinatorTest, SubmitToFinish) {
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 2, 2));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 10);
  EXPECT_EQ(cluster.JobLog("a"),
            "accepted: 40 training samples, 67 parameters in 2 partitions, 20 steps in 2 epochs\n"
            "starts on 1 shard with 2 workers\n"
            "worker-0 joined: 1 of at most 2 workers\n"
            "worker-1 joined: 2 of at most 2 workers\n"
            "epoch 1 is complete: train loss 0.5000, 0.3 s\n"
            "epoch 1: test loss 0.5000, test accuracy 0.7500 (20 samples)\n"
            "epoch 2 is complete: train loss 0.5000, 0.5 s\n"
            "epoch 2: test loss 0.5000, test accuracy 0.7500 (20 samples)\n"
            "SUCCEEDED\n");
  const JobStatus status = cluster.Status("a");
  EXPECT_EQ(status.step(), 20u);
  EXPECT_EQ(status.steps(), 20u);
  EXPECT_EQ(status.coverage_min(), 10u);
  EXPECT_EQ(status.coverage_max(), 10u);
  EXPECT_EQ(status.coverage_expected(), 10u);
  EXPECT_EQ(status.policy(), "ssp(2)");
  EXPECT_FALSE(status.reproducible());
  ASSERT_EQ(status.epochs_done_size(), 2);
  EXPECT_TRUE(status.epochs_done(1).evaluated());
  EXPECT_TRUE(std::is_sorted(cluster.roster_numbers.begin(), cluster.roster_numbers.end()));
  // The values stay on the shard until the job is deleted.
  EXPECT_TRUE(cluster.shards["ps-0"].reports.Holds(1));
  EXPECT_TRUE(AskJob<event::DeleteJob>("a").ok());
  cluster.RunFor(absl::Seconds(1));
  EXPECT_FALSE(cluster.shards["ps-0"].reports.Holds(1));
  EXPECT_EQ(AskJob<event::GetJob>("a").code(), absl::StatusCode::kNotFound);
  for (const auto& [key, value] : cluster.store) EXPECT_FALSE(absl::StartsWith(key, "job/")) << key;
}

TEST_F(CoordinatorTest, BspHasNoTrainingLeasesAndIsReproducible) {
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(MiniCluster::Spec("b", Policy::BSP, 1, 2));
  bool leased = false;
  ASSERT_TRUE(cluster.RunUntil([&] {
    for (const auto& [name, worker] : cluster.workers) {
      for (const Lease& lease : worker.orders.leases()) leased |= lease.work().purpose() == TRAIN;
    }
    return cluster.IsIn("b", SUCCEEDED);
  }));
  EXPECT_FALSE(leased);
  EachItemOnce(1, 2, 10);
  EXPECT_TRUE(cluster.Status("b").reproducible());
  EXPECT_TRUE(cluster.Status("b").epochs_done(1).evaluated());
}

TEST_F(CoordinatorTest, StopStepsCutsTheLastEpochShortAndStillEvaluates) {
  cluster.AddShard("ps-0");
  Workers(1);
  JobSpec spec = Ssp("short", 1, 1);
  spec.mutable_stop()->set_steps(13);
  Submit(spec);
  ASSERT_TRUE(Ends("short", SUCCEEDED));
  EXPECT_EQ(cluster.covered[1][0].size(), 10u);
  EXPECT_EQ(cluster.covered[1][1].size(), 3u);
  EXPECT_TRUE(cluster.Status("short").epochs_done(1).evaluated());
}

TEST_F(CoordinatorTest, ADeadWorkersLeasesGoToOthers) {
  cluster.train_samples = 400;
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 20; }));
  cluster.workers["worker-1"].alive = false;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.covered[1][0].size(), 100u);
  EXPECT_EQ(cluster.covered[1][1].size(), 100u);
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-1 left: no report for 5.0 s; its "));
  EXPECT_EQ(cluster.workers["worker-0"].orders.run().job_uid(), 0u);
}

// Its reports are compared with what the shards have, and the epoch ends.
TEST_F(CoordinatorTest, WhatIsOnlySaidToBeDoneIsDoneAgain) {
  cluster.train_samples = 400;
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 20; }));
  cluster.workers["worker-1"].lies = true;
  cluster.RunFor(absl::Seconds(1));
  cluster.workers["worker-1"].lies = false;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 100);
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr("steps were reported done, but shards do not have them after 10s"));
}

TEST_F(CoordinatorTest, ASilentWorkerIsToldToRejoinAndThenServesAgain) {
  cluster.train_samples = 4000;
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
  cluster.workers["worker-1"].alive = false;
  cluster.RunFor(absl::Seconds(6));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  cluster.workers["worker-1"].alive = true;
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(cluster.workers["worker-1"].orders.rejoin());
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  const uint64_t before = cluster.workers["worker-1"].identity.incarnation();
  cluster.Rejoin("worker-1");
  EXPECT_GT(cluster.workers["worker-1"].identity.incarnation(), before);
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
}

TEST_F(CoordinatorTest, ARestartOnTheStoreGoesOnWithoutGrantingTwice) {
  cluster.train_samples = 400;
  cluster.AddShard("ps-0");
  cluster.AddShard("ps-1");
  Workers(3);
  Submit(Ssp("a", 2, 3));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 40; }));
  const uint64_t roster = cluster.Status("a").roster();
  cluster.StartCoordinator();
  EXPECT_EQ(cluster.core->generation(), 2u);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 100);
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("all its workers and shards have reported: goes on"));
  EXPECT_EQ(cluster.Status("a").roster(), roster + 1) << "nobody left but at the end";
  EXPECT_TRUE(cluster.Status("a").epochs_done(0).evaluated());
}

TEST_F(CoordinatorTest, ARestartAtAnyTimeEndsTheSame) {
  for (int rounds = 3; rounds < 40; rounds += 3) {
    MiniCluster other;
    other.AddShard("ps-0");
    other.AddWorker("worker-0");
    other.AddWorker("worker-1");
    other.Submit(Ssp("a", 1, 2));
    for (int i = 0; i < rounds; ++i) other.Round();
    other.StartCoordinator();
    ASSERT_TRUE(other.RunUntil([&] { return other.IsIn("a", SUCCEEDED); })) << rounds << "\n"
                                                                            << other.JobLog("a");
    EXPECT_EQ(other.covered[1][0].size(), 10u);
    EXPECT_EQ(other.covered[1][1].size(), 10u);
    const JobStatus status = other.Status("a");
    ASSERT_EQ(status.epochs_done_size(), 2);
    for (const EpochResult& result : status.epochs_done()) EXPECT_TRUE(result.evaluated());
  }
}

TEST_F(CoordinatorTest, LeasesFromBeforeARestartStandWhileADeadWorkerIsAwaited) {
  cluster.train_samples = 4000;
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 200; }));
  cluster.workers["worker-1"].alive = false;
  MiniCluster::MiniWorker& worker = cluster.workers["worker-0"];
  const int held = worker.orders.leases_size();
  const uint64_t before = worker.items;
  ASSERT_GT(held, 8);
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(4));
  EXPECT_GE(worker.items - before, 8u) << "works on what it holds";
  EXPECT_EQ(worker.orders.leases_size(), held);
  EXPECT_EQ(worker.generation, 2u);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.covered[1][0].size(), 1000u);
  uint64_t twice = 0;
  for (const auto& [item, count] : cluster.covered[1][0]) twice += count > 1;
  EXPECT_EQ(twice, 0u);
}

TEST_F(CoordinatorTest, NobodyIsTakenOffWithinTheGraceOfAStart) {
  cluster.train_samples = 40'000;
  cluster.AddShard("ps-0");
  Workers(1);
  Submit(Once(Ssp("a", 1, 1)));
  cluster.RunFor(absl::Seconds(1));
  cluster.workers["worker-0"].alive = cluster.shards["ps-0"].alive = false;
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(9.9));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  cluster.RunFor(absl::Seconds(0.2));
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
}

TEST_F(CoordinatorTest, ACoordinatorThatWasStoppedItselfTakesNobodyOff) {
  cluster.train_samples = 40'000;
  cluster.AddShard("ps-0");
  Workers(1);
  Submit(Ssp("a", 1, 1));
  cluster.RunFor(absl::Seconds(1));
  cluster.now += absl::Seconds(60);
  cluster.Tick();
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
}

TEST_F(CoordinatorTest, JobsThatCanStartDoSoInOrderOfSubmission) {
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 2, 2));
  Submit(Ssp("b", 2, 2));
  Submit(Ssp("c", 1, 1));
  EXPECT_EQ(cluster.Status("b").state(), PENDING);
  EXPECT_EQ(
      cluster.Status("b").reason(),
      "needs 2 workers (workers.min) and can have 0 of the cluster's 2, of which job a keeps 2: "
      "waits for 2 more workers");
  EXPECT_EQ(
      cluster.Status("c").reason(),
      "needs 1 worker (workers.min) and can have 0 of the cluster's 2, of which job a keeps 2: "
      "waits for 1 more worker");
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ASSERT_TRUE(Ends("b", RUNNING));
  EXPECT_TRUE(cluster.IsIn("c", PENDING));
  ASSERT_TRUE(Ends("b", SUCCEEDED));
  ASSERT_TRUE(Ends("c", SUCCEEDED));
}

TEST_F(CoordinatorTest, PendingSaysWhatIsMissing) {
  Workers(1);
  Submit(Ssp("a", 2, 2));
  EXPECT_EQ(cluster.Status("a").reason(), "needs at least one shard: start one with `starling-ps`");
  cluster.AddShard("ps-0");
  EXPECT_EQ(
      cluster.Status("a").reason(),
      "needs 2 workers (workers.min); the cluster has 1: start 1 more with `starling-worker`, "
      "or submit it with a lower workers.min");
  cluster.AddWorker("worker-1");
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
}

TEST_F(CoordinatorTest, AJobGrowsFromIdleWorkersAndShrinksForAWaitingOne) {
  cluster.train_samples = 2000;
  cluster.AddShard("ps-0");
  Workers(1);
  Submit(Ssp("a", 1, 3));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  cluster.AddWorker("worker-1");
  cluster.AddWorker("worker-2");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 3; }));
  Submit(Ssp("b", 2, 2));
  EXPECT_EQ(cluster.Status("b").state(), RUNNING) << "at once";
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 1; }));
  EXPECT_THAT(cluster.JobLog("a"),
              AllOf(HasSubstr("gives worker-2 to job b\n"), HasSubstr("gives worker-1 to job b\n"),
                    HasSubstr("worker-2 left: was given to another job")));
  ASSERT_TRUE(Ends("b", SUCCEEDED));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 3; }));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(CoordinatorTest, AWorkerThatDoesNotGiveItsJobBackIsFenced) {
  cluster.train_samples = 8000;
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
  cluster.workers["worker-1"].stubborn = true;
  Submit(Ssp("b", 1, 1));
  cluster.RunFor(absl::Seconds(29));
  EXPECT_EQ(cluster.Status("a").workers(), 2u);
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  EXPECT_TRUE(cluster.workers["worker-1"].orders.rejoin());
}

TEST_F(CoordinatorTest, ADeadShardFailsItsJobsByNameAndTheClusterStaysUsable) {
  cluster.train_samples = 40'000;
  cluster.AddShard("ps-0");
  cluster.AddShard("ps-1");
  Workers(2);
  Submit(Once(Ssp("a", 1, 2)));
  cluster.RunFor(absl::Seconds(2));
  cluster.shards["ps-1"].alive = false;
  const absl::Time died = cluster.now;
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_LT(cluster.now - died, absl::Seconds(30));
  EXPECT_THAT(
      cluster.Status("a").reason(),
      AllOf(HasSubstr("shard ps-1 at ps-1:1 is gone (no report for 5.0 s): lost partition 1 of 2"),
            HasSubstr(", 27 of 67 parameters")));
  cluster.RunFor(absl::Seconds(1));
  cluster.train_samples = 40;
  Submit(Ssp("b", 2, 2));
  ASSERT_TRUE(Ends("b", SUCCEEDED));
  cluster.AddShard("ps-1");  // a new incarnation serves new jobs, not the failed one
  cluster.RunFor(absl::Seconds(1));
  EXPECT_FALSE(cluster.shards["ps-1"].reports.Holds(1));
  Submit(Ssp("c", 2, 2));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(cluster.shards["ps-1"].reports.Holds(3));
}

// No other worker can be asked for it, and one worker's word ends no job.
TEST_F(CoordinatorTest, ANonFiniteLossOfAnUnknownItemSetsItsWorkerAside) {
  for (const Policy::Kind policy : {Policy::BSP, Policy::SSP, Policy::ASYNC}) {
    MiniCluster other;
    other.train_samples = 4000;
    other.AddShard("ps-0");
    other.AddWorker("worker-0");
    other.Submit(MiniCluster::Spec("a", policy, 1, 1));
    ASSERT_TRUE(other.RunUntil([&] { return other.Status("a").step() > 3; }));
    Fault fault;
    fault.set_kind(Fault::NON_FINITE);
    fault.mutable_run()->set_job_uid(1);
    fault.set_message("the loss is nan at step 4, layer loss");
    for (const char* name : {"worker-0", "worker-1"}) {
      const std::string next = absl::StrCat("worker-", name[7] - '0' + 1);
      other.AddWorker(next);
      other.workers[name].fault = fault;
      other.Round();
      EXPECT_EQ(other.Status("a").state(), RUNNING) << name;
      const uint64_t step = other.Status("a").step();
      EXPECT_TRUE(other.RunUntil([&] { return other.Status("a").step() > step + 1; })) << next;
      EXPECT_EQ(other.workers[name].run.job_uid(), 0u) << "it is not asked again";
      fault.mutable_work()->set_purpose(TRAIN);
      fault.mutable_work()->set_epoch(1000);  // there is none
    }
  }
}

TEST_F(CoordinatorTest, ADrainingWorkerGetsNothingNewAndLeavesInGoodOrder) {
  cluster.train_samples = 400;
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 20; }));
  MiniCluster::MiniWorker& worker = cluster.workers["worker-0"];
  worker.draining = worker.idle_hands = true;
  cluster.Round();
  const int held = worker.orders.leases_size();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_LE(worker.orders.leases_size(), held);
  worker.drained = true;
  cluster.Round();
  EXPECT_FALSE(worker.orders.rejoin());
  EXPECT_EQ(worker.orders.run().job_uid(), 0u);
  worker.alive = false;
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-0 left: it has left in good order"));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 100);
}

TEST_F(CoordinatorTest, AWorkerThatDiesWhileEvaluatingIsReplacedAndEachRangeCountsOnce) {
  cluster.test_samples = 400;
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 1, 2));
  const auto evaluating = [&] {
    for (const Lease& lease : cluster.workers["worker-1"].orders.leases()) {
      if (lease.work().purpose() == EVALUATE) return true;
    }
    return false;
  };
  ASSERT_TRUE(cluster.RunUntil(evaluating));
  cluster.RunFor(absl::Seconds(0.5));
  cluster.workers["worker-1"].alive = false;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr("epoch 1: test loss 0.5000, test accuracy 0.7500 (400 samples)"));
}

// Another coordinator on an empty state, which has given the same numbers: the shard keeps its
// values.
TEST_F(CoordinatorTest, AShardOfAnotherClusterIsRefusedByNameAndNotTold) {
  CoordinatorOptions options;
  options.new_cluster = 0xb;
  MiniCluster other(options);
  cluster.AddShard("ps-0");
  other.AddShard("ps-0");
  const RegisterReply& ours = cluster.shards["ps-0"].identity;
  const RegisterReply& theirs = other.shards["ps-0"].identity;
  EXPECT_EQ(ours.incarnation(), theirs.incarnation());
  EXPECT_EQ(theirs.cluster(), 0xbu);
  ShardReport report;
  report.set_shard(ours.id());
  report.set_incarnation(ours.incarnation() + 5);  // not known there: it would be told to drop all
  report.set_sequence(100);
  report.set_generation(ours.generation());
  report.set_cluster(ours.cluster());
  const CallReply reply = other.Ask<event::ShardReport>(report);
  const auto* refused = std::get_if<absl::Status>(&reply);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused->message()),
              AllOf(HasSubstr("000000000000000b"), HasSubstr("0000000000000001"),
                    HasSubstr("the coordinator on its previous state")));
  // A worker has nothing to lose: it joins.
  WorkerReport worker;
  worker.set_cluster(ours.cluster());
  const CallReply orders = other.Ask<event::WorkerReport>(worker);
  EXPECT_TRUE(std::get<WorkerOrders>(orders).rejoin());
}

TEST_F(CoordinatorTest, AStateWithoutAClusterGetsOneAndKeepsIt) {
  StoredCluster stored;
  ASSERT_TRUE(stored.ParseFromString(cluster.store["cluster"]));
  EXPECT_NE(stored.cluster(), 0u);
  stored.clear_cluster();
  cluster.store["cluster"] = stored.SerializeAsString();
  cluster.StartCoordinator();
  ASSERT_TRUE(stored.ParseFromString(cluster.store["cluster"]));
  EXPECT_NE(stored.cluster(), 0u);
}

TEST_F(CoordinatorTest, ACosineThatNeverFallsIsWarnedAbout) {
  cluster.AddShard("ps-0");
  Workers(1);
  JobSpec spec = Ssp("a", 1, 1);
  spec.mutable_optimizer()->mutable_learning_rate()->mutable_cosine()->set_peak(0.1);
  spec.mutable_stop()->set_epochs(1'000'000);
  spec.mutable_stop()->set_wall_time_seconds(3);
  Submit(spec);
  ASSERT_EQ(cluster.Status("a").warnings_size(), 1);
  EXPECT_THAT(cluster.Status("a").warnings(0), HasSubstr("cosine spans the job's 10000000 steps"));
}

}  // namespace
}  // namespace starling::coordinator
