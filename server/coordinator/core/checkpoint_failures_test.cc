// Attempts at a checkpoint in which something goes wrong.
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/checkpoint_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CheckpointTest, AMissIsFollowedByAnAttemptFurtherAhead) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-0"].checkpoint_misses = true;
  const CallId call = Create("a");
  ASSERT_TRUE(Comes([&] { return !cluster.dropped.empty(); }));
  cluster.shards["ps-0"].checkpoint_misses = false;
  const CheckpointInfo info = Made(call);
  EXPECT_GT(ParseCheckpointId(info.id())->number, 1u);
  EXPECT_EQ(Of("a").failures(), 0u) << "a miss is no failure";
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr("checkpoint 1 was given up: ps-0: partition 0 has begun the step"));
}

TEST_F(CheckpointTest, AfterTwoMissesTheCutIsAChangeOfPolicy) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-0"].checkpoint_misses = true;
  const CallId call = Create("a");
  ASSERT_TRUE(Comes([&] { return cluster.dropped.size() == 2; }));
  cluster.shards["ps-0"].checkpoint_misses = false;
  const CheckpointInfo info = Made(call);
  const JobStatus status = cluster.Status("a");
  ASSERT_EQ(status.policies_size(), 2);
  EXPECT_TRUE(status.policies(1).checkpoint());
  EXPECT_EQ(status.policies(1).step(), info.step());
  EXPECT_EQ(status.policy(), "bsp");
  EXPECT_TRUE(status.reproducible());
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(ParseCheckpointId(Made(Create("a")).id())->number, 4u);
  EXPECT_EQ(cluster.Status("a").policies_size(), 2) << "the next one is at a boundary again";
}

TEST_F(CheckpointTest, AMissAtAChangeOfPolicyIsAFailure) {
  cluster.shards["ps-0"].checkpoint_misses = true;
  Submit(Ssp("a", 1, 1));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))), HasSubstr("ps-0: partition 0 has begun"));
  Submit(Bsp("b", 20));
  cluster.AddWorker("worker-1");
  ASSERT_TRUE(Comes([&] { return Of("b").failures() == 1; }));
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(Of("b").failures(), 1u) << "the next one waits";
  EXPECT_EQ(cluster.Status("b").policies_size(), 2);
}

TEST_F(CheckpointTest, AShardThatCannotWriteCostsTheAttemptAlone) {
  Submit(Bsp("a", 50));
  ASSERT_TRUE(Comes([&] { return List().size() == 1; }));
  cluster.shards["ps-1"].checkpoint_fails = "No space left on device";
  ASSERT_TRUE(Comes([&] { return Of("a").failures() == 1; }));
  EXPECT_THAT(Of("a").trouble(), AllOf(HasSubstr("at step "), HasSubstr("ps-1: No space left")));
  EXPECT_GT(Of("a").overdue_seconds(), 0);
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("No space left on device; the next one in 10s"));
  cluster.RunFor(absl::Seconds(9));
  EXPECT_EQ(Of("a").failures(), 1u);
  cluster.RunFor(absl::Seconds(4));
  EXPECT_EQ(Of("a").failures(), 2u);
  EXPECT_GT(Of("a").failing_seconds(), 13) << "since the first of them";
  EXPECT_EQ(List().size(), 1u) << "the earlier one stays";
  EXPECT_TRUE(cluster.folders.empty());
  cluster.shards["ps-1"].checkpoint_fails.clear();
  ASSERT_TRUE(Comes([&] { return List().size() == 2; }, absl::Seconds(40)));
  EXPECT_EQ(Of("a").trouble(), "");
  EXPECT_EQ(Of("a").overdue_seconds(), 0);
  EXPECT_EQ(Of("a").failing_seconds(), 0);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 1000);
}

TEST_F(CheckpointTest, WhoAsksHearsWhyItFailed) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-1"].checkpoint_fails = "No space left on device";
  const CallReply reply = cluster.Await(Create("a"));
  EXPECT_THAT(ErrorOf(reply),
              AllOf(HasSubstr("no checkpoint of job a: at step "), HasSubstr("ps-1: No space")));
  EXPECT_TRUE(absl::IsAborted(std::get<absl::Status>(reply))) << "a client would ask again";
  cluster.RunFor(absl::Seconds(30));
  EXPECT_EQ(Of("a").failures(), 1u) << "nobody asked again";
  EXPECT_EQ(Of("a").failing_seconds(), 0) << "none would come by itself";
  cluster.shards["ps-1"].checkpoint_fails.clear();
  EXPECT_FALSE(Made(Create("a")).id().empty()) << "at once, whatever failed before";
}

TEST_F(CheckpointTest, ADiskThatRefusesIsTold) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  cluster.makes = absl::UnavailableError("EIO at the folder");
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))), HasSubstr("EIO at the folder"));
  cluster.makes = absl::OkStatus();
  cluster.seals = absl::ResourceExhaustedError("ENOSPC at the manifest");
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))), HasSubstr("ENOSPC at the manifest"));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(cluster.folders.empty());
  cluster.seals = absl::OkStatus();
  EXPECT_FALSE(Made(Create("a")).id().empty());
}

// The state was restored from a backup, for example.
TEST_F(CheckpointTest, AFolderOfThatNameIsNotOurs) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  cluster.makes = absl::AlreadyExistsError("is there");
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))), HasSubstr("is there"));
  EXPECT_TRUE(cluster.dropped.empty());
  cluster.makes = absl::OkStatus();
  EXPECT_EQ(ParseCheckpointId(Made(Create("a")).id())->number, 2u);
}

TEST_F(CheckpointTest, ADiskThatHangsIsGivenUpAndNotAskedForMore) {
  JobSpec spec = Bsp("a");
  spec.mutable_stop()->set_epochs(10);
  Submit(spec);
  cluster.RunFor(absl::Seconds(1));
  cluster.disk_hangs = true;
  const CallId call = Create("a");
  cluster.RunFor(absl::Seconds(59));
  EXPECT_EQ(cluster.Answer(call), nullptr);
  EXPECT_THAT(ErrorOf(cluster.Await(call)), HasSubstr("/checkpoints has not answered for 1m"));
  const CallId second = Create("a");
  cluster.RunFor(absl::Minutes(2));
  EXPECT_EQ(Of("a").failures(), 1u) << "one at a time";
  EXPECT_EQ(Of("a").stage(), "making");
  cluster.disk_hangs = false;
  EXPECT_EQ(ParseCheckpointId(Made(second).id())->number, 2u);
  EXPECT_EQ(cluster.dropped.size(), 1u) << "the folder that came too late";
  EXPECT_TRUE(cluster.folders.empty());
}

TEST_F(CheckpointTest, OneThatIsSealedTooLateIsThereAllTheSame) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CallId call = Create("a");
  ASSERT_TRUE(ComesTo("writing"));
  cluster.disk_hangs = true;
  EXPECT_THAT(ErrorOf(cluster.Await(call)), HasSubstr("has not answered for 1m"));
  cluster.disk_hangs = false;
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(List().size(), 1u);
  EXPECT_EQ(Of("a").trouble(), "");
}

TEST_F(CheckpointTest, AStepThatIsNotReachedIsGivenUp) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-1"].checkpoint_waits = true;
  const CallReply reply = cluster.Await(Create("a"));
  EXPECT_THAT(ErrorOf(reply), AllOf(HasSubstr("was not reached within 1m"),
                                    HasSubstr("on ps-1 (0 of "), Not(HasSubstr("ps-0"))));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
}

TEST_F(CheckpointTest, AShardThatWritesNothingIsGivenUp) {
  JobSpec spec = Bsp("a");
  spec.mutable_stop()->set_epochs(5);
  Submit(spec);
  cluster.RunFor(absl::Seconds(1));
  ForEachShard([](auto& shard) { shard.checkpoint_bytes = 3000; });
  cluster.shards["ps-0"].checkpoint_pace = 1;  // for 150 s
  cluster.shards["ps-1"].checkpoint_pace = 3000;
  const CallId slow = Create("a");
  cluster.RunFor(absl::Seconds(100));
  EXPECT_EQ(cluster.Answer(slow), nullptr) << "it is slow, but it writes";
  cluster.shards["ps-0"].checkpoint_pace = 0;
  EXPECT_THAT(ErrorOf(cluster.Await(slow)), HasSubstr("ps-0 has written nothing for 1m"));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  EXPECT_TRUE(cluster.folders.empty());
}

TEST_F(CheckpointTest, AnotherPrimaryBeginsItAgain) {
  cluster.train_samples = 40000;
  JobSpec spec = Bsp("a");
  spec.set_durability(DURABILITY_REPLICATED);
  Submit(spec);
  ASSERT_TRUE(Comes(
      [&] { return cluster.Status("a").partitions_whole() == cluster.Status("a").partitions(); }));
  ForEachShard([](auto& shard) { shard.checkpoint_pace = 0; });
  const CallId call = Create("a");
  ASSERT_TRUE(ComesTo("writing"));
  cluster.shards["ps-1"].alive = false;
  cluster.RunFor(absl::Seconds(7));
  ForEachShard([](auto& shard) { shard.checkpoint_pace = 100; });
  const CheckpointInfo info = Made(call);
  EXPECT_EQ(ParseCheckpointId(info.id())->number, 2u);
  EXPECT_EQ(cluster.checkpoints.begin()->second.files_size(), 1);
  EXPECT_EQ(Of("a").failures(), 0u);
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("is on another shard now"));
}

TEST_F(CheckpointTest, AShardMayDieOnceItHasWritten) {
  cluster.train_samples = 40000;
  JobSpec spec = Bsp("a");
  spec.set_durability(DURABILITY_REPLICATED);
  Submit(spec);
  ASSERT_TRUE(Comes(
      [&] { return cluster.Status("a").partitions_whole() == cluster.Status("a").partitions(); }));
  cluster.shards["ps-0"].checkpoint_bytes = 1000;
  cluster.shards["ps-0"].checkpoint_pace = 5;  // for 10 s
  const CallId call = Create("a");
  ASSERT_TRUE(ComesTo("writing"));
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-1"].alive = false;
  const CheckpointInfo info = Made(call);
  EXPECT_EQ(ParseCheckpointId(info.id())->number, 1u);
  EXPECT_EQ(cluster.checkpoints.begin()->second.files_size(), 2);
  EXPECT_GT(cluster.Status("a").failovers(), 0u);
}

TEST_F(CheckpointTest, AShardMayBeForgottenOnceItHasWritten) {
  cluster.train_samples = 40000;
  CoordinatorOptions options;
  options.checkpoint_root = "/checkpoints";
  options.forget_lost = absl::Seconds(20);
  cluster.UseOptions(options);
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  JobSpec spec = Bsp("a");
  spec.set_durability(DURABILITY_REPLICATED);
  Submit(spec);
  ASSERT_TRUE(Comes(
      [&] { return cluster.Status("a").partitions_whole() == cluster.Status("a").partitions(); }));
  cluster.shards["ps-0"].checkpoint_bytes = 3000;
  cluster.shards["ps-0"].checkpoint_pace = 4;  // for 37 s
  const CallId call = Create("a");
  ASSERT_TRUE(ComesTo("writing"));
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-1"].alive = false;
  EXPECT_EQ(ParseCheckpointId(Made(call).id())->number, 1u);
  EXPECT_EQ(cluster.checkpoints.begin()->second.files_size(), 2);
}

// It became the primary of one more before it heard of the step, which that one's file has already.
TEST_F(CheckpointTest, AShardThatHasCapturedMoreThanItLedIsNotCounted) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  MiniCluster::MiniShard& shard = cluster.shards["ps-1"];
  shard.checkpoint_waits = true;
  const CallId call = Create("a");
  ASSERT_TRUE(Comes([&] { return !shard.parts.empty(); }));
  shard.parts.begin()->second.set_captured(1);
  shard.checkpoint_waits = false;
  EXPECT_EQ(ParseCheckpointId(Made(call).id())->number, 2u);
  EXPECT_EQ(Of("a").failures(), 0u);
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("another one came to it before it heard"));
}

TEST_F(CheckpointTest, AFileThatCountsStaysTheOneThatCounts) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-0"].checkpoint_pace = 1;
  const CallId call = Create("a");
  ASSERT_TRUE(ComesTo("writing"));
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-1"].checkpoint_fails = "it is written once";
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-0"].checkpoint_pace = 100;
  EXPECT_EQ(ParseCheckpointId(Made(call).id())->number, 1u);
}

TEST_F(CheckpointTest, ARestartOfTheCoordinatorEndsTheAttempt) {
  Submit(Bsp("a", 50));
  ASSERT_TRUE(Comes([&] { return List().size() == 1; }));
  ForEachShard([](auto& shard) { shard.checkpoint_pace = 1; });
  ASSERT_TRUE(ComesTo("writing"));
  ASSERT_EQ(cluster.folders.size(), 1u);
  const CheckpointId before = *cluster.folders.begin();
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  ForEachShard([](auto& shard) { EXPECT_EQ(shard.checkpoint_pace, 1u); });
  EXPECT_FALSE(cluster.folders.contains(before)) << "it is removed";
  EXPECT_EQ(List().size(), 1u);
  ForEachShard([](auto& shard) { shard.checkpoint_pace = 100; });
  ASSERT_TRUE(Comes([&] { return List().size() == 2; }));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 1000);
}

TEST_F(CheckpointTest, WhetherTheCoordinatorLivedToSeeItDoesNotMatter) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  Create("a");
  ASSERT_TRUE(Comes([&] { return !cluster.checkpoints.empty(); }));
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(List().size(), 1u);
}

TEST_F(CheckpointTest, IsNotDueAtOnceAfterARestart) {
  JobSpec spec = Bsp("a", 50);
  spec.mutable_checkpoint()->clear_every_steps();
  spec.mutable_checkpoint()->set_every_seconds(20);
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return List().size() == 1; }, absl::Seconds(30)));
  cluster.RunFor(absl::Seconds(8));
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(List().size(), 1u);
  ASSERT_TRUE(Comes([&] { return List().size() == 2; }, absl::Seconds(12)));
}

}  // namespace
}  // namespace starling::coordinator
