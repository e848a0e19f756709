// Whole lives of jobs, as transcripts: what happens, and what the job's log says about it.
#include "server/coordinator/core/coordinator.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/mini_cluster.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CoordinatorTest : public ::testing::Test {
 protected:
  void Workers(int count) {
    for (int i = 0; i < count; ++i) cluster.AddWorker("worker-" + std::to_string(i));
  }
  void Submit(const JobSpec& spec) {
    const CoordinatorReply reply = cluster.Submit(spec);
    ASSERT_TRUE(std::holds_alternative<SubmitReply>(reply)) << std::get<absl::Status>(reply);
  }
  absl::Status SubmitError(const JobSpec& spec) {
    const CoordinatorReply reply = cluster.Submit(spec);
    const auto* status = std::get_if<absl::Status>(&reply);
    return status == nullptr ? absl::OkStatus() : *status;
  }
  bool Ends(const std::string& job, JobState state) {
    return cluster.RunUntil([&] { return cluster.IsIn(job, state); });
  }
  template <typename Event>
  absl::Status AskJob(const std::string& name) {
    JobRequest request;
    request.set_name(name);
    const CoordinatorReply reply = cluster.Ask<Event>(request);
    const auto* status = std::get_if<absl::Status>(&reply);
    return status == nullptr ? absl::OkStatus() : *status;
  }
  void EachItemOnce(uint64_t uid, uint32_t epochs, uint64_t items) {
    ASSERT_EQ(cluster.covered[uid].size(), epochs);
    for (const auto& [epoch, counts] : cluster.covered[uid]) {
      EXPECT_EQ(counts.size(), items) << "epoch " << epoch;
      for (const auto& [item, count] : counts) EXPECT_EQ(count, 1) << "item " << item;
    }
  }
  static JobSpec Ssp(const std::string& name, uint32_t min, uint32_t max) {
    return MiniCluster::Spec(name, Policy::SSP, min, max);
  }

  MiniCluster cluster;
};

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
  EXPECT_EQ(cluster.shards["ps-0"].orders.jobs_size(), 1);
  EXPECT_TRUE(AskJob<DeleteJobEvent>("a").ok());
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.shards["ps-0"].orders.jobs_size(), 0);
  EXPECT_EQ(AskJob<GetJobEvent>("a").code(), absl::StatusCode::kNotFound);
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
  EXPECT_EQ(cluster.workers["worker-0"].orders.job().run().job_uid(), 0u);
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
    ASSERT_TRUE(other.RunUntil([&] { return other.IsIn("a", SUCCEEDED); })) << rounds << "\n" << other.JobLog("a");
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
  ASSERT_GT(held, 100);
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(4));
  EXPECT_GE(worker.items - before, 78u) << "works on what it holds";
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
  Submit(Ssp("a", 1, 1));
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
  cluster.Step(TickEvent{});
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
}

TEST_F(CoordinatorTest, JobsQueueFirstComeFirstServed) {
  cluster.AddShard("ps-0");
  Workers(2);
  Submit(Ssp("a", 2, 2));
  Submit(Ssp("b", 2, 2));
  Submit(Ssp("c", 1, 1));
  EXPECT_EQ(cluster.Status("b").state(), PENDING);
  EXPECT_EQ(cluster.Status("b").reason(),
            "waits for job a to finish or for 2 more workers (0 idle, workers.min is 2)");
  EXPECT_EQ(cluster.Status("c").reason(), "waits for the jobs before it");
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
  EXPECT_EQ(cluster.Status("a").reason(),
            "waits for 1 more worker (1 idle, workers.min is 2): start one with `starling-worker`");
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
  ASSERT_TRUE(Ends("b", RUNNING));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  EXPECT_THAT(cluster.JobLog("a"), AllOf(HasSubstr("gives worker-2 to job b\n"), HasSubstr("gives worker-1 to job b\n"),
                                      HasSubstr("worker-2 left: gave the job's place to another job")));
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
  Submit(Ssp("a", 1, 2));
  cluster.RunFor(absl::Seconds(2));
  cluster.shards["ps-1"].alive = false;
  const absl::Time died = cluster.now;
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_LT(cluster.now - died, absl::Seconds(30));
  EXPECT_THAT(cluster.Status("a").reason(),
              AllOf(HasSubstr("shard ps-1 at ps-1:1 is gone (no report for 5.0 s): lost partition 1 of 2"),
                    HasSubstr(", 27 of 67 parameters")));
  cluster.RunFor(absl::Seconds(1));
  cluster.train_samples = 40;
  Submit(Ssp("b", 2, 2));
  ASSERT_TRUE(Ends("b", SUCCEEDED));
  cluster.AddShard("ps-1");  // a new incarnation serves new jobs, not the failed one
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.shards["ps-1"].orders.jobs_size(), 0);
  Submit(Ssp("c", 2, 2));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.shards["ps-1"].orders.jobs_size(), 1);
}

TEST_F(CoordinatorTest, ANonFiniteLossStopsTheJobUnderEveryPolicy) {
  for (const Policy::Kind policy : {Policy::BSP, Policy::SSP, Policy::ASYNC}) {
    MiniCluster other;
    other.train_samples = 4000;
    other.AddShard("ps-0");
    other.AddWorker("worker-0");
    other.Submit(MiniCluster::Spec("a", policy, 1, 1));
    ASSERT_TRUE(other.RunUntil([&] { return other.Status("a").step() > 3; }));
    Fault& fault = other.workers["worker-0"].fault;
    fault.set_kind(Fault::NON_FINITE);
    fault.mutable_run()->set_job_uid(1);
    fault.set_message("the loss is nan at step 4 on worker-0, layer loss");
    other.Round();
    EXPECT_EQ(other.Status("a").state(), FAILED);
    EXPECT_EQ(other.Status("a").reason(), "the loss is nan at step 4 on worker-0, layer loss");
    other.RunFor(absl::Seconds(1));
    EXPECT_EQ(other.shards["ps-0"].orders.jobs_size(), 1) << "the last good values stay";
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
  EXPECT_EQ(worker.orders.job().run().job_uid(), 0u);
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
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("epoch 1: test loss 0.5000, test accuracy 0.7500 (400 samples)"));
}

TEST_F(CoordinatorTest, WallTimeStopsTheJobAndSaysAtWhichStep) {
  cluster.train_samples = 40'000;
  cluster.AddShard("ps-0");
  Workers(1);
  JobSpec spec = Ssp("a", 1, 1);
  spec.mutable_stop()->set_wall_time_seconds(3);
  Submit(spec);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("stopped by wallTime at step "));
  EXPECT_NEAR(cluster.Status("a").running_seconds(), 3, 0.2);
}

// ---- Submission ----

TEST_F(CoordinatorTest, ASubmissionNeedsAWorkerThatLooksAtTheData) {
  const absl::Status none = SubmitError(Ssp("a", 1, 1));
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()), HasSubstr("no worker to look at the data: start one with"));

  Workers(1);
  cluster.workers["worker-0"].inspect_error = "/data/train.csv: no such file";
  const absl::Status bad = SubmitError(Ssp("a", 1, 1));
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.message()), HasSubstr("/data/train.csv: no such file"));

  cluster.workers["worker-0"].inspects = false;
  const absl::Time begin = cluster.now;
  const absl::Status late = SubmitError(Ssp("a", 1, 1));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("worker-0 has not looked at the data within 15s"));
  EXPECT_LT(cluster.now - begin, absl::Seconds(16));
}

TEST_F(CoordinatorTest, AnotherWorkerLooksWhenTheFirstDies) {
  Workers(2);
  cluster.workers["worker-0"].alive = false;
  Submit(Ssp("a", 1, 1));
}

TEST_F(CoordinatorTest, ImpossibleValuesAreRefusedOnTheServerToo) {
  Workers(1);
  JobSpec spec = Ssp("a", 0, 1);
  EXPECT_THAT(std::string(SubmitError(spec).message()), HasSubstr("workers"));
  spec = MiniCluster::Spec("a", Policy::BSP, 5, 8);
  EXPECT_THAT(std::string(SubmitError(spec).message()), HasSubstr("5 workers cannot share the 4 micro-batches"));
  spec = Ssp("a", 1, 1);
  spec.mutable_model_source()->set_builtin("resnet");
  EXPECT_THAT(std::string(SubmitError(spec).message()), HasSubstr("resnet"));
  spec = Ssp("a", 1, 1);
  spec.add_sample_shape(5);
  EXPECT_THAT(std::string(SubmitError(spec).message()), HasSubstr("a sample of the data has 4"));
  EXPECT_TRUE(std::get<ListJobsReply>(cluster.Ask<ListJobsEvent>()).jobs().empty());
}

TEST_F(CoordinatorTest, ADryRunChecksEverythingAndLeavesNothing) {
  Workers(1);
  const CoordinatorReply reply = cluster.Submit(Ssp("a", 1, 1), 7, true);
  ASSERT_TRUE(std::holds_alternative<SubmitReply>(reply));
  EXPECT_EQ(std::get<SubmitReply>(reply).status().parameters(), 67u);
  EXPECT_EQ(AskJob<GetJobEvent>("a").code(), absl::StatusCode::kNotFound);
  cluster.workers["worker-0"].inspect_error = "truncated";
  EXPECT_TRUE(std::holds_alternative<absl::Status>(cluster.Submit(Ssp("a", 1, 1), 8, true)));
}

TEST_F(CoordinatorTest, ARetriedSubmissionGetsTheSameJobAndAnotherOfItsNameIsRefused) {
  Workers(1);
  const CoordinatorReply first = cluster.Submit(Ssp("a", 1, 1), 7);
  const CoordinatorReply again = cluster.Submit(Ssp("a", 1, 1), 7);
  EXPECT_EQ(std::get<SubmitReply>(first).uid(), std::get<SubmitReply>(again).uid());
  const absl::Status other = SubmitError(Ssp("a", 1, 1));
  EXPECT_EQ(other.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(other.message()), HasSubstr("starling cancel a && starling delete a"));
  cluster.StartCoordinator();
  const CoordinatorReply after = cluster.Submit(Ssp("a", 1, 1), 7);
  EXPECT_EQ(std::get<SubmitReply>(first).uid(), std::get<SubmitReply>(after).uid());
}

TEST_F(CoordinatorTest, CancelAndDelete) {
  cluster.train_samples = 40'000;
  cluster.AddShard("ps-0");
  Workers(1);
  Submit(Ssp("a", 1, 1));
  const absl::Status running = AskJob<DeleteJobEvent>("a");
  EXPECT_EQ(running.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(running.message()), HasSubstr("cancel first"));
  EXPECT_TRUE(AskJob<CancelJobEvent>("a").ok());
  EXPECT_TRUE(AskJob<CancelJobEvent>("a").ok()) << "a retry";
  EXPECT_TRUE(cluster.IsIn("a", CANCELLED));
  EXPECT_TRUE(AskJob<DeleteJobEvent>("a").ok());
  EXPECT_EQ(AskJob<CancelJobEvent>("a").code(), absl::StatusCode::kNotFound);
  Submit(Ssp("a", 1, 1));
  EXPECT_EQ(cluster.Status("a").uid(), 2u) << "uids are never used again";
}

// ---- Daemons ----

TEST_F(CoordinatorTest, AnotherProtocolIsRefusedByName) {
  RegisterRequest request;
  request.set_role(WORKER);
  request.set_name("worker-9");
  request.mutable_version()->set_version("0.9.0");
  request.mutable_version()->set_protocol(2);
  const auto reply = std::get<RegisterReply>(cluster.Ask<RegisterEvent>(request));
  EXPECT_THAT(reply.refused(), AllOf(HasSubstr("worker-9 has version 0.9.0 and speaks protocol 2"),
                                     HasSubstr("version 0.1.0 and speaks protocol 1")));
  EXPECT_EQ(reply.id(), 0u);
}

TEST_F(CoordinatorTest, ANameInUseIsRefusedAndARetryGetsTheSameAnswer) {
  Workers(1);
  const RegisterReply first = cluster.workers["worker-0"].identity;
  const RegisterReply retry = cluster.Register(WORKER, "worker-0", "worker-0:1", 1);
  EXPECT_EQ(retry.incarnation(), first.incarnation());
  EXPECT_THAT(cluster.Register(WORKER, "worker-0", "elsewhere:1", 99).refused(),
              HasSubstr("the name worker-0 is in use by a live process at worker-0:1"));
}

TEST_F(CoordinatorTest, AProcessThatWasKilledAndStartedAgainTakesItsNameBack) {
  Workers(1);
  const RegisterReply first = cluster.workers["worker-0"].identity;
  cluster.workers["worker-0"].alive = false;
  const absl::Time begin = cluster.now;
  const RegisterReply second = cluster.Register(WORKER, "worker-0", "worker-0:2", 99);
  EXPECT_EQ(second.refused(), "");
  EXPECT_EQ(second.id(), first.id());
  EXPECT_GT(second.incarnation(), first.incarnation());
  EXPECT_LT(cluster.now - begin, absl::Seconds(6));
  // From the same port: at once.
  const RegisterReply third = cluster.Register(WORKER, "worker-0", "worker-0:2", 100);
  EXPECT_GT(third.incarnation(), second.incarnation());
}

TEST_F(CoordinatorTest, AnOldCoordinatorIsNotServed) {
  Workers(1);
  WorkerReport report;
  report.set_worker(1);
  report.set_incarnation(cluster.workers["worker-0"].identity.incarnation());
  report.set_sequence(1'000'000);
  report.set_generation(7);
  report.set_draining(true);
  const CoordinatorReply reply = cluster.Ask<WorkerReportEvent>(report);
  const auto* status = std::get_if<absl::Status>(&reply);
  ASSERT_NE(status, nullptr);
  EXPECT_THAT(std::string(status->message()), HasSubstr("generation 1, but 7 was seen"));
}

TEST_F(CoordinatorTest, AnOvertakenReportIsNotTaken) {
  Workers(1);
  WorkerReport report;
  report.set_worker(1);
  report.set_incarnation(cluster.workers["worker-0"].identity.incarnation());
  report.set_sequence(50);
  report.set_clock(5);
  cluster.Step(WorkerReportEvent{cluster.NewCall(), report});
  report.set_sequence(49);
  report.set_draining(true);
  report.set_clock(4);
  cluster.Step(WorkerReportEvent{cluster.NewCall(), report});
  const auto workers = std::get<ListWorkersReply>(cluster.Ask<ListWorkersEvent>());
  EXPECT_EQ(workers.workers(0).state(), "idle");
  EXPECT_EQ(workers.workers(0).clock(), 5);
}

TEST_F(CoordinatorTest, AReportIsHeldUntilThereIsNewsAndATenthOfASecondAtMost) {
  Workers(1);
  WorkerReport report;
  report.set_worker(1);
  report.set_incarnation(cluster.workers["worker-0"].identity.incarnation());
  report.set_sequence(1);
  const CallId first = cluster.NewCall();
  cluster.Step(WorkerReportEvent{first, report});
  ASSERT_NE(cluster.Answer(first), nullptr) << "orders that it has not seen";
  report.set_orders_seen(std::get<WorkerOrders>(*cluster.Answer(first)).version());
  report.set_sequence(2);
  const CallId held = cluster.NewCall();
  cluster.Step(WorkerReportEvent{held, report});
  EXPECT_EQ(cluster.Answer(held), nullptr);
  report.set_sequence(3);
  const CallId newer = cluster.NewCall();
  cluster.Step(WorkerReportEvent{newer, report});
  ASSERT_NE(cluster.Answer(held), nullptr) << "a newer call of the same worker";
  EXPECT_TRUE(std::get<WorkerOrders>(*cluster.Answer(held)).unchanged());
  EXPECT_EQ(cluster.Answer(newer), nullptr);
  cluster.now += absl::Milliseconds(99);
  cluster.Step(TickEvent{});
  EXPECT_EQ(cluster.Answer(newer), nullptr);
  cluster.now += absl::Milliseconds(1);
  cluster.Step(TickEvent{});
  ASSERT_NE(cluster.Answer(newer), nullptr);
  EXPECT_EQ(std::get<WorkerOrders>(*cluster.Answer(newer)).sequence_taken(), 3u);
}

TEST_F(CoordinatorTest, LogsWaitForNews) {
  Workers(1);
  Submit(Ssp("a", 1, 1));
  LogsRequest request;
  request.set_name("a");
  const auto seen = std::get<LogsReply>(cluster.Ask<LogsEvent>(request));
  ASSERT_GT(seen.entries_size(), 0);
  request.set_after(seen.entries(seen.entries_size() - 1).number());
  request.set_wait_seconds(30);
  const CallId call = cluster.NewCall();
  cluster.Step(LogsEvent{call, request});
  EXPECT_EQ(cluster.Answer(call), nullptr);
  cluster.AddShard("ps-0");
  ASSERT_NE(cluster.Answer(call), nullptr);
  EXPECT_EQ(std::get<LogsReply>(*cluster.Answer(call)).entries(0).number(), request.after() + 1);
}

TEST(CoordinatorState, DamagedRecordsAreNamed) {
  EXPECT_EQ(Coordinator::Create({}, {{"cluster", "\xff\xff"}}).status().code(), absl::StatusCode::kDataLoss);
  const auto missing = Coordinator::Create({}, {{"worker/0000000001", ""}});
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("\"cluster\""));
}

}  // namespace
}  // namespace starling
