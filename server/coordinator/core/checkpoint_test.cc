// Checkpoints, from when they are due to when they are deleted, and jobs that start from one.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CheckpointTest : public CoordinatorTest {
 protected:
  CheckpointTest() {
    cluster.train_samples = 4000;  // 1,000 steps in an epoch
    for (const char* name : {"ps-0", "ps-1"}) cluster.AddShard(name);
    Workers(1);
    cluster.RunFor(absl::Seconds(1));
  }

  static JobSpec Bsp(const std::string& name, uint64_t every_steps = 0) {
    JobSpec spec = MiniCluster::Spec(name, Policy::BSP, 1, 1);
    spec.clear_evaluate();
    if (every_steps > 0) spec.mutable_checkpoint()->set_every_steps(every_steps);
    spec.mutable_checkpoint()->set_keep(2);
    if (every_steps == 0) spec.clear_checkpoint();
    return spec;
  }
  CallId Create(const std::string& job, uint64_t nonce = 0) {
    CreateCheckpointRequest request;
    request.set_name(job);
    request.set_nonce(nonce);
    const CallId call = cluster.NewCall();
    cluster.Step(event::CreateCheckpoint{call, request});
    return call;
  }
  static std::string ErrorOf(const CallReply& reply) {
    const auto* status = std::get_if<absl::Status>(&reply);
    return status == nullptr ? "" : std::string(status->message());
  }
  // The checkpoint of the call.
  CheckpointInfo Made(CallId call) {
    const CallReply reply = cluster.Await(call);
    const auto* made = std::get_if<CreateCheckpointReply>(&reply);
    EXPECT_NE(made, nullptr) << ErrorOf(reply);
    return made == nullptr ? CheckpointInfo() : made->checkpoint();
  }
  std::vector<CheckpointInfo> List(const std::string& job = "") {
    ListCheckpointsRequest request;
    request.set_name(job);
    const CallReply reply = cluster.Ask<event::ListCheckpoints>(request);
    EXPECT_EQ(ErrorOf(reply), "");
    const auto& list = std::get<ListCheckpointsReply>(reply).checkpoints();
    return {list.begin(), list.end()};
  }
  std::vector<uint64_t> Numbers(const std::string& job = "") {
    std::vector<uint64_t> numbers;
    for (const CheckpointInfo& info : List(job))
      numbers.push_back(ParseCheckpointId(info.id())->number);
    return numbers;
  }
  std::string DeleteError(const std::string& id) {
    DeleteCheckpointRequest request;
    request.set_id(id);
    return ErrorOf(cluster.Ask<event::DeleteCheckpoint>(request));
  }
  CheckpointStatus Of(const std::string& job) { return cluster.Status(job).checkpoint(); }
  bool Comes(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(20)) {
    return cluster.RunUntil(condition, limit);
  }
  bool ComesTo(const std::string& stage) {
    return Comes([&] { return Of("a").stage() == stage; });
  }
  static SubmitRequest From(const std::string& from, const std::string& name = "") {
    SubmitRequest request;
    request.set_from(from);
    request.set_name(name);
    return request;
  }
  // As it is durable.
  JobDescription DescriptionOf(const std::string& job) {
    StoredJob stored;
    EXPECT_TRUE(stored.ParseFromString(cluster.store[records::Job(cluster.Status(job).uid())]));
    return stored.description();
  }
  std::string SubmitFromError(const SubmitRequest& request) {
    return ErrorOf(cluster.Submit(request));
  }
  void ForEachShard(const std::function<void(MiniCluster::MiniShard&)>& act) {
    for (auto& [name, shard] : cluster.shards) act(shard);
  }
};

// ---- Taken ----

TEST_F(CheckpointTest, IsTakenBySteps) {
  Submit(Bsp("a", 50));
  ASSERT_TRUE(Comes([&] { return !Of("a").last().id().empty(); }));
  const CheckpointInfo first = Of("a").last();
  EXPECT_GE(first.step(), 50u);
  EXPECT_EQ(first.job(), "a");
  EXPECT_FALSE(first.asked_for());
  ASSERT_TRUE(Comes([&] { return Of("a").last().step() > first.step(); }));
  EXPECT_GE(Of("a").last().step(), first.step() + 50);
  EXPECT_EQ(Of("a").failures(), 0u);
  EXPECT_EQ(Of("a").trouble(), "");
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr(absl::StrCat("checkpoint ", first.id(), " is there: step ", first.step())));
}

TEST_F(CheckpointTest, AJobThatDoesNotSayWhenHasTheClustersRule) {
  CoordinatorOptions options;
  options.checkpoint_root = "/checkpoints";
  options.default_checkpoint.emplace().set_every_seconds(5);
  options.default_checkpoint->set_keep(1);
  cluster.UseOptions(options);
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(12));
  EXPECT_EQ(List("a").size(), 1u);
  EXPECT_EQ(cluster.Get("a").spec().checkpoint().every_seconds(), 5);
  JobSpec own = Bsp("b", 100);
  Submit(own);
  EXPECT_EQ(cluster.Get("b").spec().checkpoint().every_seconds(), 0);
  // Where none can be taken, only a job that asks for some is refused.
  ForEachShard([](auto& shard) { shard.checkpoint_error = "no such folder"; });
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(SubmitError(Bsp("c")).ok());
  EXPECT_FALSE(SubmitError(Bsp("d", 100)).ok());
}

TEST_F(CheckpointTest, IsTakenByTime) {
  JobSpec spec = Bsp("a", 50);
  spec.mutable_checkpoint()->clear_every_steps();
  spec.mutable_checkpoint()->set_every_seconds(5);
  Submit(spec);
  cluster.RunFor(absl::Seconds(4));
  EXPECT_THAT(List(), IsEmpty());
  cluster.RunFor(absl::Seconds(8));
  EXPECT_EQ(List().size(), 2u);
  EXPECT_LT(Of("a").age_seconds(), 6);
}

TEST_F(CheckpointTest, HasAllBelowItsStepAndNothingElse) {
  JobSpec spec = Bsp("a");
  spec.mutable_stop()->set_epochs(3);
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() > 1100; }, absl::Minutes(2)));
  const CheckpointInfo info = Made(Create("a"));
  EXPECT_TRUE(info.asked_for());
  EXPECT_GE(info.step(), 1100u);
  EXPECT_EQ(info.epoch(), 1u);
  ASSERT_EQ(cluster.checkpoints.size(), 1u);
  const CheckpointManifest& manifest = cluster.checkpoints.begin()->second;
  EXPECT_EQ(manifest.id(), info.id());
  EXPECT_EQ(manifest.step(), info.step());
  EXPECT_EQ(manifest.job().spec().name(), "a");
  EXPECT_GT(manifest.job().spec().model().nodes_size(), 0);
  EXPECT_EQ(manifest.policy().kind(), Policy::BSP);
  EXPECT_EQ(manifest.files_size(), 2);
  ASSERT_EQ(manifest.results_size(), 1);
  EXPECT_EQ(manifest.results(0).step(), 1000u);
  ASSERT_GT(manifest.points_size(), 0);
  for (const CurvePoint& point : manifest.points()) EXPECT_LE(point.step(), info.step());
  EXPECT_NEAR(manifest.train_loss(), 0.5, 1e-6);
  EXPECT_GT(manifest.running_us(), 0);
  EXPECT_EQ(manifest.not_reproducible_because(), "");
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 3, 1000);
  EXPECT_TRUE(cluster.folders.empty());
}

TEST_F(CheckpointTest, NumbersGrowOverRestarts) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo first = Made(Create("a"));
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo second = Made(Create("a"));
  EXPECT_EQ(ParseCheckpointId(second.id())->number, ParseCheckpointId(first.id())->number + 1);
  EXPECT_EQ(List().size(), 2u);
}

TEST_F(CheckpointTest, AFewJobsHaveTheDiskAtOnce) {
  for (int i = 0; i < 6; ++i) cluster.AddWorker("more-" + std::to_string(i));
  for (int i = 0; i < 6; ++i) Submit(Bsp("j" + std::to_string(i), 20));
  cluster.disk_hangs = true;
  cluster.RunFor(absl::Seconds(10));
  int under_way = 0, wait = 0;
  for (int i = 0; i < 6; ++i) {
    const CheckpointStatus status = Of("j" + std::to_string(i));
    (status.stage() == "making" ? under_way : wait) += 1;
    EXPECT_GT(status.overdue_seconds(), 0);
  }
  EXPECT_EQ(under_way, 4);
  EXPECT_EQ(wait, 2);
  cluster.disk_hangs = false;
  cluster.RunFor(absl::Seconds(5));
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(List("j" + std::to_string(i)).empty()) << i;
}

TEST_F(CheckpointTest, TheJobThatEndsFirstHasNone) {
  JobSpec spec = Bsp("a", 10);
  spec.mutable_stop()->set_steps(12);
  Submit(spec);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_TRUE(cluster.folders.empty());
  EXPECT_EQ(Of("a").failures(), 0u);
}

// ---- Asked for ----

TEST_F(CheckpointTest, WhoAsksIsAnsweredWhenItIsThere) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  ForEachShard([](auto& shard) { shard.checkpoint_pace = 1; });
  const CallId call = Create("a", 7);
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Answer(call), nullptr);
  EXPECT_EQ(Of("a").stage(), "writing");
  ForEachShard([](auto& shard) { shard.checkpoint_pace = 100; });
  const CheckpointInfo info = Made(call);
  EXPECT_TRUE(info.asked_for());
  EXPECT_EQ(Made(Create("a", 7)).id(), info.id()) << "the answer was lost";
  EXPECT_EQ(List().size(), 1u);
}

TEST_F(CheckpointTest, ARetryTakesOverTheCall) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CallId first = Create("a", 7), second = Create("a", 7);
  EXPECT_THAT(ErrorOf(cluster.Await(first)), HasSubstr("made again"));
  EXPECT_FALSE(Made(second).id().empty());
  EXPECT_EQ(List().size(), 1u);
}

TEST_F(CheckpointTest, WhoAsksTooLateForOneGetsTheNext) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  ForEachShard([](auto& shard) { shard.checkpoint_pace = 10; });
  const CallId first = Create("a", 1);
  ASSERT_TRUE(ComesTo("writing"));
  const CallId second = Create("a", 2);
  const CheckpointInfo early = Made(first), late = Made(second);
  EXPECT_NE(early.id(), late.id());
  EXPECT_LT(early.step(), late.step());
}

TEST_F(CheckpointTest, OnlyAJobThatTrainsHasOne) {
  EXPECT_THAT(ErrorOf(cluster.Await(Create("nobody"))), HasSubstr("no job named nobody"));
  JobSpec spec = Bsp("a");
  spec.set_workers_min(2);
  spec.set_workers_max(2);
  Submit(spec);
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))), HasSubstr("job a is PENDING"));
  cluster.AddWorker("worker-1");
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))),
              AllOf(HasSubstr("is SUCCEEDED"), HasSubstr("starling export a")));
}

TEST_F(CheckpointTest, WhoAsksNearTheEndHearsOfIt) {
  JobSpec spec = Bsp("a");
  spec.mutable_stop()->set_steps(20);
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() == 17; }));
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))), HasSubstr("ends before a checkpoint"));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_TRUE(cluster.folders.empty());
}

TEST_F(CheckpointTest, TheEndOfTheJobEndsTheAttempt) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  ForEachShard([](auto& shard) { shard.checkpoint_pace = 1; });
  const CallId call = Create("a");
  ASSERT_TRUE(ComesTo("writing"));
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  EXPECT_THAT(ErrorOf(cluster.Await(call)), HasSubstr("job a is over (CANCELLED)"));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(cluster.folders.empty());
  EXPECT_THAT(List(), IsEmpty());
}

TEST_F(CheckpointTest, WhatOnlyLacksItsManifestOutlivesTheJob) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CallId call = Create("a");
  ASSERT_TRUE(ComesTo("writing"));
  cluster.disk_hangs = true;
  ASSERT_TRUE(ComesTo("sealing"));
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  EXPECT_EQ(Of("a").stage(), "sealing");
  EXPECT_TRUE(AskJob<event::DeleteJob>("a").ok());
  cluster.disk_hangs = false;
  EXPECT_FALSE(Made(call).id().empty());
  EXPECT_EQ(List("a").size(), 1u) << "checkpoints stay when their job is deleted";
}

TEST_F(CheckpointTest, ACallThatIsGoneNeedsNoAnswer) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CallId call = Create("a");
  ASSERT_TRUE(Comes([&] { return !Of("a").stage().empty(); }));
  cluster.Step(event::CallGone{call});
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Answer(call), nullptr);
  EXPECT_EQ(List().size(), 1u);
}

TEST_F(CheckpointTest, SoManyCallsWaitAndNoMore) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  cluster.disk_hangs = true;
  std::vector<CallId> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(Create("a"));
  const CallReply more = cluster.Await(Create("a"));
  EXPECT_TRUE(absl::IsResourceExhausted(std::get<absl::Status>(more))) << ErrorOf(more);
  cluster.disk_hangs = false;
  for (const CallId call : calls) EXPECT_FALSE(Made(call).id().empty());
}

TEST_F(CheckpointTest, ACallIsAnsweredInTime) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  cluster.workers["worker-0"].idle_hands = true;
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))),
              AllOf(HasSubstr("no checkpoint of job a: at step "), HasSubstr("was not reached")));
}

// ---- What goes wrong ----

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

// ---- Deleted ----

TEST_F(CheckpointTest, TheNewestOnesAreKept) {
  Submit(Bsp("a", 50));
  cluster.RunFor(absl::Seconds(1));
  Made(Create("a"));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  const std::vector<uint64_t> numbers = Numbers();
  ASSERT_EQ(numbers.size(), 3u);
  EXPECT_GT(numbers[1], 5u) << "many came before";
  EXPECT_EQ(numbers[2], 1u) << "the one that was asked for";
  EXPECT_EQ(cluster.checkpoints.size(), 3u);
}

TEST_F(CheckpointTest, PeopleDeleteWhatTheyName) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo info = Made(Create("a"));
  EXPECT_THAT(DeleteError("x"), HasSubstr("expected a checkpoint's id"));
  EXPECT_THAT(DeleteError("0000000000000001-1-99"), HasSubstr("there is no checkpoint"));
  EXPECT_THAT(DeleteError("00000000000000ff-1-1"),
              HasSubstr("belongs to cluster 00000000000000ff"));
  cluster.drops = absl::UnavailableError("EIO");
  EXPECT_THAT(DeleteError(info.id()), HasSubstr("was not removed: EIO"));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(List().size(), 1u) << "the disk knows";
  cluster.drops = absl::OkStatus();
  EXPECT_EQ(DeleteError(info.id()), "");
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_TRUE(cluster.checkpoints.empty());
}

TEST_F(CheckpointTest, ASourceIsNotDeleted) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo info = Made(Create("a"));
  ASSERT_EQ(SubmitFromError(From(info.id(), "b")), "");
  EXPECT_TRUE(cluster.IsIn("b", PENDING));
  EXPECT_THAT(DeleteError(info.id()), HasSubstr("a job that is not over starts from checkpoint"));
  EXPECT_TRUE(AskJob<event::CancelJob>("b").ok());
  EXPECT_EQ(DeleteError(info.id()), "");
}

TEST_F(CheckpointTest, ListsComeInPages) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  for (int i = 0; i < 5; ++i) Made(Create("a"));
  ListCheckpointsRequest request;
  request.mutable_page()->set_size(2);
  std::vector<uint64_t> numbers;
  do {
    const auto reply = std::get<ListCheckpointsReply>(cluster.Ask<event::ListCheckpoints>(request));
    EXPECT_LE(reply.checkpoints_size(), 2);
    for (const CheckpointInfo& info : reply.checkpoints())
      numbers.push_back(ParseCheckpointId(info.id())->number);
    request.mutable_page()->set_after(reply.next());
  } while (!request.page().after().empty());
  EXPECT_THAT(numbers, ElementsAre(5, 4, 3, 2, 1));
  request.mutable_page()->set_after("x");
  EXPECT_THAT(ErrorOf(cluster.Ask<event::ListCheckpoints>(request)), HasSubstr("list them again"));
}

// ---- The folder ----

TEST_F(CheckpointTest, AShardThatSeesAnotherFolderIsNamed) {
  cluster.shards["ps-1"].checkpoint_error = "there is no folder /checkpoints";
  cluster.RunFor(absl::Seconds(1));
  const absl::Status error = SubmitError(Bsp("a", 50));
  EXPECT_THAT(std::string(error.message()),
              AllOf(HasSubstr("shard ps-1 does not see the coordinator's checkpoint folder"),
                    HasSubstr("there is no folder /checkpoints"), Not(HasSubstr("ps-0"))));
  Submit(Bsp("b"));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(ErrorOf(cluster.Await(Create("b"))), HasSubstr("shard ps-1 does not see"));
  const auto troubles = [&] {
    const auto reply = std::get<ListShardsReply>(cluster.Ask<event::ListShards>());
    std::map<std::string, std::string> troubles;
    for (const ShardStatus& shard : reply.shards()) troubles[shard.name()] = shard.trouble();
    return troubles;
  };
  EXPECT_THAT(troubles()["ps-1"], HasSubstr("does not see the coordinator's checkpoint folder"));
  EXPECT_EQ(troubles()["ps-0"], "");
  cluster.shards["ps-1"].checkpoint_error.clear();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(troubles()["ps-1"], "");
  EXPECT_FALSE(Made(Create("b")).id().empty());
}

TEST_F(CheckpointTest, AMountThatGoesAwayFailsTheNextOnes) {
  Submit(Bsp("a", 50));
  ASSERT_TRUE(Comes([&] { return List().size() == 1; }));
  cluster.shards["ps-1"].checkpoint_error = "stale file handle";
  ASSERT_TRUE(Comes([&] { return Of("a").failures() > 0; }));
  EXPECT_THAT(Of("a").trouble(), HasSubstr("stale file handle"));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
}

TEST_F(CheckpointTest, NothingIsTakenBeforeTheDiskWasRead) {
  cluster.lists = absl::UnavailableError("EIO");
  Submit(Bsp("a", 100));
  cluster.RunFor(absl::Seconds(1));
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(8));
  EXPECT_TRUE(cluster.folders.empty());
  const CallReply reply = cluster.Ask<event::ListCheckpoints>(ListCheckpointsRequest());
  EXPECT_THAT(ErrorOf(reply), HasSubstr("are not listed yet: EIO"));
  EXPECT_GT(Of("a").overdue_seconds(), 0);
  cluster.lists = absl::OkStatus();
  EXPECT_TRUE(Comes([&] { return !cluster.checkpoints.empty(); }));
}

// A copy of the state that was made before the job was submitted.
TEST_F(CheckpointTest, WithAnOlderStateNoJobGetsTheUidOfAnothersCheckpoints) {
  const auto older = cluster.store;
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo info = Made(Create("a"));
  cluster.store = older;
  cluster.lists = absl::UnavailableError("EIO");
  cluster.StartCoordinator();
  const absl::Status early = SubmitError(Bsp("b", 50));
  EXPECT_TRUE(absl::IsUnavailable(early)) << early;
  EXPECT_THAT(std::string(early.message()), HasSubstr("are not listed yet: EIO"));
  JobSpec without = Bsp("c");
  without.clear_checkpoint();
  EXPECT_TRUE(std::holds_alternative<SubmitReply>(cluster.Submit(without, 0, /*dry_run=*/true)))
      << "a disk that fails keeps no other job out";
  cluster.lists = absl::OkStatus();
  cluster.RunFor(absl::Seconds(11));
  Submit(Bsp("b", 50));
  EXPECT_EQ(cluster.Status("b").uid(), cluster.checkpoints.begin()->first.job.value + 1);
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  EXPECT_TRUE(cluster.checkpoints.contains(*ParseCheckpointId(info.id())));
  EXPECT_EQ(List("a").size(), 1u);
  EXPECT_EQ(List("b").size(), 2u);
}

TEST_F(CheckpointTest, WhatCannotBeReadIsNamedAndCanBeDeleted) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointId good = *ParseCheckpointId(Made(Create("a")).id());
  const CheckpointId bad{good.cluster, JobUid(7), 2};
  cluster.unreadable[bad] = "manifest.json: damaged";
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(List().size(), 1u);
  EXPECT_THAT(SubmitFromError(From(ToString(bad), "b")),
              HasSubstr("cannot be read: manifest.json: damaged"));
  Submit(Bsp("c"));
  EXPECT_EQ(cluster.Status("c").uid(), 8u) << "its uid was used";
  EXPECT_EQ(DeleteError(ToString(bad)), "");
  EXPECT_TRUE(cluster.unreadable.empty());
  EXPECT_THAT(DeleteError(ToString(bad)), HasSubstr("there is no checkpoint"));
}

TEST_F(CheckpointTest, AFolderThatTakesNothingNewIsReadAndMadeEmptier) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo first = Made(Create("a"));
  const CheckpointInfo second = Made(Create("a"));
  cluster.marks = absl::ResourceExhaustedError("No space left on device");
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))),
              HasSubstr("/checkpoints cannot be written: No space left on device"));
  EXPECT_THAT(std::string(SubmitError(Bsp("b", 50)).message()), HasSubstr("cannot be written"));
  EXPECT_EQ(List().size(), 2u);
  EXPECT_EQ(SubmitFromError(From(second.id(), "c")), "");
  EXPECT_EQ(DeleteError(first.id()), "");
  cluster.marks = absl::OkStatus();
  cluster.RunFor(absl::Seconds(11));
  EXPECT_FALSE(Made(Create("a")).id().empty());
}

// Its folder is not made: that one is another's.
TEST_F(CheckpointTest, ADeletedJobsAttemptDropsNothingOfAnother) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  Made(Create("a"));
  const CheckpointId taken = cluster.checkpoints.begin()->first;
  cluster.Step(
      event::CheckpointMade{{taken.cluster, JobUid(99), 1}, absl::AlreadyExistsError("is there")});
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(cluster.dropped.empty());
}

TEST(NoCheckpointRoot, EverythingSaysSo) {
  CoordinatorOptions options;
  auto core = *Coordinator::Create(options, {});
  Actions actions;
  core->Start(absl::UnixEpoch(), absl::UnixEpoch(), actions);
  for (const Action& action : actions)
    EXPECT_FALSE(std::holds_alternative<action::ListCheckpoints>(action));
  SubmitRequest request;
  request.set_from("a");
  EXPECT_FALSE(core->AsksForDisk(request));
  actions.clear();
  core->Step(event::Submit{CallId(1), request}, absl::UnixEpoch(), actions);
  core->Step(event::ListCheckpoints{CallId(2)}, absl::UnixEpoch(), actions);
  core->Step(event::DeleteCheckpoint{CallId(3)}, absl::UnixEpoch(), actions);
  int refused = 0;
  for (const Action& action : actions) {
    const auto* reply = std::get_if<action::Reply>(&action);
    if (reply == nullptr) continue;
    ++refused;
    EXPECT_THAT(std::string(std::get<absl::Status>(reply->reply).message()),
                HasSubstr("start it, and all shards, with --checkpoint-root DIR"));
  }
  EXPECT_EQ(refused, 3);
}

// ---- Jobs that go on from one ----

TEST_F(CheckpointTest, AJobGoesOnFromOne) {
  JobSpec spec = Bsp("a");
  spec.mutable_stop()->set_epochs(3);
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() > 1100; }, absl::Minutes(2)));
  const CheckpointInfo info = Made(Create("a"));
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  ASSERT_EQ(SubmitFromError(From("a", "b")), "");
  JobStatus status = cluster.Status("b");
  EXPECT_EQ(status.restored_from(), info.id());
  EXPECT_GE(status.step(), info.step());
  EXPECT_EQ(status.epoch(), 1u);
  ASSERT_EQ(status.epochs_done_size(), 1);
  EXPECT_EQ(status.epochs_done(0).step(), 1000u);
  EXPECT_NEAR(status.train_loss(), 0.5, 1e-6);
  EXPECT_TRUE(status.reproducible());
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  EachItemOnce(2, 3, 1000);
  status = cluster.Status("b");
  EXPECT_EQ(status.epochs_done_size(), 3);
  EXPECT_GT(status.running_seconds(), 100) << "with what it ran before";
  CurvesRequest request;
  request.set_name("b");
  const auto curves = std::get<CurvesReply>(cluster.Ask<event::Curves>(request));
  uint64_t last = 0;
  for (const CurvePoint& point : curves.points()) {
    EXPECT_GT(point.step(), last);
    last = point.step();
  }
  EXPECT_LT(curves.points(0).step(), 100u);
  EXPECT_EQ(last, 3000u);
}

// The cluster may have become smaller.
TEST_F(CheckpointTest, AJobGoesOnWithOtherNumbersOfWorkers) {
  JobSpec spec = Bsp("a");
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() > 10; }));
  Made(Create("a"));
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  SubmitRequest request = From("a", "b");
  request.set_workers_min(5000);
  EXPECT_THAT(SubmitFromError(request), HasSubstr("at most 4096, got 5000 and 5000"));
  request.set_workers_min(3);
  request.set_workers_max(2);
  EXPECT_THAT(SubmitFromError(request), HasSubstr("got 3 and 2"));
  request.set_workers_min(1);
  request.set_workers_max(7);
  ASSERT_EQ(SubmitFromError(request), "");
  const JobReply reply = cluster.Get("b");
  EXPECT_EQ(reply.spec().workers_min(), 1u);
  EXPECT_EQ(reply.spec().workers_max(), 7u);
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  *request.mutable_spec() = spec;
  request.mutable_spec()->set_name("c");
  EXPECT_THAT(SubmitFromError(request), HasSubstr("a job file has its own"));
}

TEST_F(CheckpointTest, WhatAJobGoesOnFromIsDurable) {
  JobSpec spec = Bsp("a");
  spec.mutable_stop()->set_epochs(3);
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() > 1100; }, absl::Minutes(2)));
  const CheckpointInfo info = Made(Create("a"));
  ASSERT_EQ(SubmitFromError(From(info.id(), "b")), "");
  EXPECT_TRUE(cluster.IsIn("b", PENDING));
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("b").step(), info.step());
  EXPECT_EQ(cluster.Status("b").epochs_done_size(), 1);
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  ASSERT_TRUE(Comes([&] { return cluster.Status("b").step() > info.step() + 20; }));
  cluster.StartCoordinator();
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  EachItemOnce(2, 3, 1000);
}

TEST_F(CheckpointTest, ASourceThatAnotherClusterMayDeleteIsWarnedOf) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  Made(Create("a"));
  const CheckpointId id = cluster.checkpoints.begin()->first;
  CheckpointManifest manifest = cluster.checkpoints.begin()->second;
  for (const bool asked_for : {true, false}) {
    const CheckpointId other{id.cluster + 1, id.job, asked_for ? 1u : 2u};
    manifest.set_id(ToString(other));
    manifest.set_asked_for(asked_for);
    cluster.checkpoints[other] = manifest;
  }
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  for (const auto& [checkpoint, unused] : std::map(cluster.checkpoints)) {
    const std::string name = absl::StrCat("b", checkpoint.cluster - id.cluster, checkpoint.number);
    ASSERT_EQ(SubmitFromError(From(ToString(checkpoint), name)), "");
    EXPECT_EQ(absl::StrContains(cluster.JobLog(name), "which may delete it"), name == "b12");
  }
}

TEST_F(CheckpointTest, AManifestWhoseNumbersMakeNoSenseIsRefused) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  Made(Create("a"));
  CheckpointManifest& manifest = cluster.checkpoints.begin()->second;
  const CheckpointManifest good = manifest;
  const auto error = [&](const std::function<void(CheckpointManifest&)>& spoil) {
    manifest = good;
    spoil(manifest);
    return SubmitFromError(From("a", "b"));
  };
  EXPECT_THAT(error([](auto& m) { m.set_step(uint64_t{1} << 40); }),
              HasSubstr("nothing is left to do"));
  EXPECT_THAT(error([](auto& m) { m.set_skipped(m.step() + 1); }), HasSubstr("skipped updates"));
  EXPECT_THAT(error([](auto& m) { m.set_running_us(-1); }), HasSubstr("-1 us of running"));
  EXPECT_THAT(error([](auto& m) { m.add_results()->set_epoch(0); }),
              HasSubstr("after 0 epochs, has a result of epoch 1"));
  EXPECT_THAT(error([](auto& m) { m.add_evaluating(4000000000); }),
              HasSubstr("an evaluation of epoch 4000000001"));
  EXPECT_EQ(error([](auto&) {}), "");
}

// Worker-1 has items of the evaluation and does not do them; worker-0 trains on.
TEST_F(CheckpointTest, AnEvaluationThatIsNotOverGoesAlong) {
  cluster.AddWorker("worker-1");
  JobSpec spec = Bsp("a");
  spec.set_workers_max(2);
  spec.mutable_evaluate()->set_every_epochs(1);
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").workers() == 2; }));
  cluster.workers["worker-1"].stuck = true;
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() > 1100; }, absl::Minutes(2)));
  ASSERT_FALSE(cluster.Status("a").epochs_done(0).evaluated());
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))),
              HasSubstr("expected the copy of epoch 1, which is being evaluated, got none"));
  ForEachShard([](auto& shard) { shard.checkpoint_copy = 0; });
  const CheckpointInfo info = Made(Create("a"));
  const CheckpointManifest& manifest = cluster.checkpoints.begin()->second;
  EXPECT_THAT(manifest.evaluating(), ElementsAre(0u));
  EXPECT_EQ(manifest.copy_epoch(), 0u);
  EXPECT_TRUE(manifest.has_copy_epoch());
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  cluster.workers["worker-1"].stuck = false;
  ASSERT_EQ(SubmitFromError(From(info.id(), "b")), "");
  ASSERT_TRUE(Comes([&] { return cluster.Status("b").epochs_done(0).evaluated(); }));
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  EXPECT_TRUE(cluster.Status("b").epochs_done(1).evaluated());
}

// The open epoch does not end before the evaluation does, so no step beyond its end is chosen.
TEST_F(CheckpointTest, AtTheEndOfAnEpochItWaitsForAnEvaluation) {
  cluster.AddWorker("worker-1");
  JobSpec spec = Bsp("a");
  spec.set_workers_max(2);
  spec.mutable_evaluate()->set_every_epochs(1);
  spec.mutable_stop()->set_epochs(3);
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").workers() == 2; }));
  cluster.workers["worker-1"].stuck = true;
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() >= 1999; }, absl::Minutes(4)));
  ASSERT_FALSE(cluster.Status("a").epochs_done(0).evaluated());
  const CallId call = Create("a");
  cluster.RunFor(absl::Minutes(2));
  EXPECT_EQ(cluster.Answer(call), nullptr);
  EXPECT_EQ(Of("a").failures(), 0u);
  EXPECT_TRUE(cluster.dropped.empty());
  cluster.workers["worker-1"].stuck = false;
  EXPECT_GE(Made(call).step(), 2000u);
}

TEST_F(CheckpointTest, HasLossesThatCameAfterTheEndOfTheirEpoch) {
  JobSpec spec = Bsp("a");
  spec.mutable_stop()->set_epochs(3);
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() >= 990; }, absl::Minutes(2)));
  cluster.workers["worker-0"].holds_losses = true;
  cluster.train_loss = 100;
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").epoch() == 1; }));
  cluster.train_loss = 0.5;
  cluster.workers["worker-0"].holds_losses = false;
  cluster.RunFor(absl::Seconds(1));
  Made(Create("a"));
  const CheckpointManifest& manifest = cluster.checkpoints.begin()->second;
  ASSERT_EQ(manifest.results_size(), 1);
  EXPECT_GT(manifest.results(0).train_loss(), 1.0);
}

// It is in force from the checkpoint's step on, though not all shards have said so.
TEST_F(CheckpointTest, HasThePolicyThatIsDecidedForItsStep) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  ForEachShard([](auto& shard) {
    shard.lags = true;
    shard.checkpoint_pace = 0;
  });
  const CallId call = Create("a");
  ASSERT_TRUE(ComesTo("writing"));
  cluster.workers["worker-0"].idle_hands = true;
  SetPolicyRequest to_async;
  to_async.set_name("a");
  to_async.mutable_policy()->set_kind(Policy::ASYNC);
  cluster.Ask<event::SetPolicy>(to_async);
  cluster.RunFor(absl::Seconds(2));
  JobStatus status = cluster.Status("a");
  ASSERT_EQ(status.policies_size(), 2);
  ASSERT_TRUE(status.policies(1).has_step());
  ASSERT_FALSE(status.policies(1).in_force());
  ForEachShard([](auto& shard) { shard.checkpoint_pace = 100; });
  ASSERT_GE(Made(call).step(), status.policies(1).step());
  EXPECT_EQ(cluster.checkpoints.begin()->second.policy().kind(), Policy::ASYNC);
}

// ---- SSP and async ----

TEST_F(CheckpointTest, WorkersThatDoNotComeToOneStepGoOn) {
  Submit(Ssp("a", 1, 1));
  cluster.RunFor(absl::Seconds(2));
  cluster.workers["worker-0"].never_holds = true;
  EXPECT_THAT(ErrorOf(cluster.Await(Create("a"))), HasSubstr("workers have not come to one step"));
  uint64_t step = cluster.Status("a").step();
  cluster.RunFor(absl::Seconds(5));
  EXPECT_GT(cluster.Status("a").step(), step);
  EXPECT_EQ(cluster.Status("a").policies_size(), 1);
  Create("a");
  ASSERT_TRUE(ComesTo("deciding"));
  ASSERT_EQ(cluster.Status("a").policies_size(), 2);
  EXPECT_EQ(cluster.Status("a").policies(1).number(), 2u) << "no number is used twice";
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(2));
  step = cluster.Status("a").step();
  cluster.RunFor(absl::Seconds(5));
  EXPECT_GT(cluster.Status("a").step(), step) << "the restart ended the attempt";
  EXPECT_EQ(cluster.Status("a").policies_size(), 1);
  cluster.workers["worker-0"].never_holds = false;
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 1000);
}

// The one whose answer was lost said that nothing needs to change.
TEST_F(CheckpointTest, ARetriedChangeOfPolicyUndoesNothingThoughItsRecordWasACheckpoints) {
  Submit(Ssp("a", 1, 1));
  cluster.RunFor(absl::Seconds(2));
  const auto set = [&](Policy::Kind kind, uint64_t nonce) {
    SetPolicyRequest request;
    request.set_name("a");
    request.set_nonce(nonce);
    request.mutable_policy()->set_kind(kind);
    if (kind == Policy::SSP) request.mutable_policy()->set_staleness(2);
    cluster.Ask<event::SetPolicy>(request);
  };
  const CallId call = Create("a");
  ASSERT_TRUE(ComesTo("deciding"));
  set(Policy::SSP, 77);
  EXPECT_FALSE(Made(call).id().empty());
  set(Policy::ASYNC, 78);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").policy() == "async"; }));
  ASSERT_EQ(cluster.Status("a").policies_size(), 2) << "the checkpoint's is gone";
  set(Policy::SSP, 77);
  EXPECT_EQ(cluster.Status("a").policies_size(), 2);
}

TEST_F(CheckpointTest, WithoutStepsInCommonTheCutIsAChangeOfPolicy) {
  cluster.AddWorker("worker-1");
  Submit(Ssp("a", 2, 2));
  cluster.RunFor(absl::Seconds(2));
  CheckpointInfo info;
  for (int i = 0; i < 3; ++i) {
    info = Made(Create("a"));
    const JobStatus status = cluster.Status("a");
    ASSERT_EQ(status.policies_size(), 2) << "those before are forgotten";
    EXPECT_EQ(status.policies(1).number(), static_cast<uint64_t>(i + 1));
    EXPECT_EQ(status.policies(1).step(), info.step());
    EXPECT_EQ(status.policy(), "ssp(2)");
  }
  EXPECT_THAT(cluster.JobLog("a"), Not(HasSubstr("policy ")));
  const CheckpointManifest& manifest = cluster.checkpoints.rbegin()->second;
  EXPECT_EQ(manifest.policy().kind(), Policy::SSP);
  EXPECT_EQ(manifest.policy().staleness(), 2u);
  EXPECT_THAT(manifest.not_reproducible_because(), HasSubstr("ssp(2)"));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 1000);
}

TEST_F(CheckpointTest, AnSspJobGoesOnFromOne) {
  cluster.AddWorker("worker-1");
  Submit(Ssp("a", 2, 2));
  cluster.RunFor(absl::Seconds(5));
  const CheckpointInfo info = Made(Create("a"));
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  cluster.RunFor(absl::Seconds(1));
  const uint64_t before = cluster.workers["worker-0"].items + cluster.workers["worker-1"].items;
  ASSERT_EQ(SubmitFromError(From(info.id(), "b")), "");
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  EachItemOnce(2, 2, 1000);
  const uint64_t items = cluster.workers["worker-0"].items + cluster.workers["worker-1"].items;
  EXPECT_EQ(items - before, 2000 - info.step() + 2 * 5) << "and two evaluations";
  EXPECT_FALSE(cluster.Status("b").reproducible());
}

// There is no step before the checkpoint's.
TEST_F(CheckpointTest, AChangeOfPolicyBeforeAJobGoesOnBeginsAtItsFirstStep) {
  Submit(Ssp("a", 1, 1));
  cluster.RunFor(absl::Seconds(2));
  const CheckpointInfo info = Made(Create("a"));
  ASSERT_EQ(SubmitFromError(From("a", "b")), "");
  ASSERT_TRUE(cluster.IsIn("b", PENDING));
  SetPolicyRequest to_bsp;
  to_bsp.set_name("b");
  to_bsp.mutable_policy()->set_kind(Policy::BSP);
  cluster.Ask<event::SetPolicy>(to_bsp);
  const JobStatus status = cluster.Status("b");
  ASSERT_EQ(status.policies_size(), 2);
  EXPECT_EQ(status.policies(1).step(), info.step());
  EXPECT_TRUE(status.policies(1).in_force());
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  EXPECT_TRUE(Ends("b", SUCCEEDED));
}

// The bits of the run that it goes on from were not reproducible, whatever the policy is now.
TEST_F(CheckpointTest, WhatWasNotReproducibleStaysSo) {
  Submit(Ssp("a", 1, 1));
  cluster.RunFor(absl::Seconds(2));
  SetPolicyRequest to_bsp;
  to_bsp.set_name("a");
  to_bsp.mutable_policy()->set_kind(Policy::BSP);
  cluster.Ask<event::SetPolicy>(to_bsp);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").policy() == "bsp"; }));
  Made(Create("a"));
  ASSERT_EQ(SubmitFromError(From("a", "b")), "");
  const JobStatus status = cluster.Status("b");
  EXPECT_EQ(status.policy(), "bsp");
  EXPECT_FALSE(status.reproducible());
  EXPECT_THAT(status.not_reproducible_because(), HasSubstr("ssp(2)"));
}

TEST_F(CheckpointTest, PeoplesChangesOfThePolicyWaitForTheirTurn) {
  cluster.AddWorker("worker-1");
  Submit(Ssp("a", 2, 2));
  cluster.RunFor(absl::Seconds(2));
  const CallId call = Create("a");
  cluster.RunFor(absl::Milliseconds(50));  // its folder is there
  SetPolicyRequest to_async;
  to_async.set_name("a");
  to_async.mutable_policy()->set_kind(Policy::ASYNC);
  cluster.Ask<event::SetPolicy>(to_async);
  EXPECT_FALSE(Made(call).id().empty());
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").policy() == "async"; }));
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Status("a").policy(), "async") << "a checkpoint changes nothing";
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 2, 1000);
}

TEST_F(CheckpointTest, WithoutWorkersWhatIsThereIsTaken) {
  Submit(Bsp("a", 50));
  ASSERT_TRUE(Comes([&] { return List().size() == 1; }));
  const uint64_t step = Of("a").last().step();
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() > step + 10; }));
  cluster.workers["worker-0"].alive = false;
  cluster.RunFor(absl::Seconds(7));
  EXPECT_EQ(cluster.Status("a").workers(), 0u);
  EXPECT_EQ(Made(Create("a")).step(), cluster.Status("a").step());
}

// ---- Other jobs with its values ----

TEST_F(CheckpointTest, AnotherJobBeginsWithItsValues) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo info = Made(Create("a"));
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  SubmitRequest request = From(info.id());
  *request.mutable_spec() = Bsp("b");
  request.mutable_spec()->mutable_optimizer()->mutable_learning_rate()->set_constant(0.01);
  ASSERT_EQ(SubmitFromError(request), "");
  EXPECT_EQ(cluster.Status("b").restored_from(), info.id());
  EXPECT_LT(cluster.Status("b").step(), info.step()) << "from the start";
  EXPECT_EQ(DescriptionOf("b").restore().mode(), Restore::VALUES);
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  EachItemOnce(2, 2, 1000);
}

TEST_F(CheckpointTest, TheOptimizersStateGoesAlongOnRequest) {
  JobSpec spec = Bsp("a");
  spec.mutable_optimizer()->mutable_adam()->set_epsilon(1e-8);
  Submit(spec);
  cluster.RunFor(absl::Seconds(1));
  ForEachShard([](auto& shard) { shard.checkpoint_skipped = 3; });
  const CheckpointInfo info = Made(Create("a"));
  SubmitRequest request = From(info.id());
  request.set_optimizer_state(true);
  *request.mutable_spec() = Bsp("b");
  EXPECT_THAT(SubmitFromError(request), HasSubstr("has the state of adam, expected that of sgd"));
  *request.mutable_spec() = spec;
  request.mutable_spec()->set_name("b");
  ASSERT_EQ(SubmitFromError(request), "");
  const Restore restore = DescriptionOf("b").restore();
  EXPECT_EQ(restore.mode(), Restore::VALUES_AND_OPTIMIZER);
  EXPECT_EQ(restore.updates_before(), info.step() - 3);
  EXPECT_EQ(restore.step(), 0u);
}

TEST_F(CheckpointTest, AModelThatDoesNotFitIsRefused) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  SubmitRequest request = From(Made(Create("a")).id());
  *request.mutable_spec() = Bsp("b");
  auto& hidden = (*request.mutable_spec()->mutable_model_source()->mutable_arguments())["hidden"];
  hidden.mutable_ints()->add_values(9);
  EXPECT_THAT(SubmitFromError(request), HasSubstr("from: the model is not that of checkpoint"));
}

TEST_F(CheckpointTest, UnderItsOwnNameTheOldJobIsInTheWay) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  Made(Create("a"));
  EXPECT_THAT(SubmitFromError(From("a")), HasSubstr("a job named a exists (RUNNING)"));
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  EXPECT_TRUE(AskJob<event::DeleteJob>("a").ok());
  EXPECT_EQ(SubmitFromError(From("a")), "");
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(CheckpointTest, OtherDataIsRefused) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  Made(Create("a"));
  cluster.workers["worker-0"].data_digest = 0xabc;
  EXPECT_THAT(SubmitFromError(From("a", "b")),
              AllOf(HasSubstr("trained on other data than worker-0 finds"), HasSubstr("0abc"),
                    HasSubstr("--from ")));
  cluster.workers["worker-0"].data_digest = 0;
  cluster.train_samples = 4004;
  EXPECT_THAT(SubmitFromError(From("a", "b")), HasSubstr("4004 and 20 samples, expected 4000"));
}

TEST_F(CheckpointTest, AManifestThatMakesNoSenseIsRefused) {
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  Made(Create("a"));
  CheckpointManifest& manifest = cluster.checkpoints.begin()->second;
  manifest.set_step(2000);
  EXPECT_THAT(SubmitFromError(From("a", "b")),
              HasSubstr("is of step 2000 of a job of 2000 steps: nothing is left to do"));
  manifest.set_step(20);
  manifest.mutable_policy()->clear_kind();
  EXPECT_THAT(SubmitFromError(From("a", "b")), HasSubstr("names no policy"));
}

TEST_F(CheckpointTest, WhatIsNotThereIsRefused) {
  EXPECT_THAT(SubmitFromError(From("a")), HasSubstr("there is no checkpoint a"));
  SubmitRequest request;
  *request.mutable_spec() = Bsp("b");
  request.set_optimizer_state(true);
  EXPECT_THAT(SubmitFromError(request), HasSubstr("expected a job file and a checkpoint"));
  Submit(Bsp("a"));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo info = Made(Create("a"));
  event::Submit unread{cluster.NewCall(), From("a", "b")};
  unread.from = absl::DataLossError("its manifest is damaged");
  cluster.Step(unread);
  EXPECT_THAT(ErrorOf(cluster.Await(unread.call)),
              AllOf(HasSubstr(info.id()), HasSubstr("its manifest is damaged")));
}

}  // namespace
}  // namespace starling::coordinator
