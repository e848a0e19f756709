// Checkpoints, from when they are due to when they are there.
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/checkpoint_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

}  // namespace
}  // namespace starling::coordinator
