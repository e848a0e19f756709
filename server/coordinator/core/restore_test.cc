// Jobs that go on from a checkpoint, and jobs that begin with the values of one.
#include <functional>
#include <map>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/checkpoint_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
