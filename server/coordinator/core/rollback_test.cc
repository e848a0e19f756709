// A job that has lost values goes back to its newest checkpoint, in a new era.
#include <algorithm>
#include <functional>
#include <optional>
#include <set>
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
using ::testing::Not;

class RollbackTest : public CoordinatorTest {
 protected:
  RollbackTest() {
    cluster.train_samples = 400;  // 100 steps in an epoch
    for (const char* name : {"ps-0", "ps-1"}) cluster.AddShard(name);
    Workers(1);
    cluster.RunFor(absl::Seconds(1));
  }

  static JobSpec Job(const std::string& name, uint64_t every_steps = 30,
                     Policy::Kind policy = Policy::BSP) {
    JobSpec spec = MiniCluster::Spec(name, policy, 1, 1);
    spec.clear_evaluate();
    spec.mutable_stop()->set_epochs(4);
    if (every_steps > 0) spec.mutable_checkpoint()->set_every_steps(every_steps);
    if (every_steps > 0) spec.mutable_checkpoint()->set_keep(2);
    return spec;
  }
  bool Comes(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(30)) {
    return cluster.RunUntil(condition, limit);
  }
  CheckpointInfo Last() { return cluster.Status("a").checkpoint().last(); }
  // The job is so far beyond its last checkpoint, of at least this number.
  void RunBeyond(uint64_t number, uint64_t steps = 5) {
    ASSERT_TRUE(Comes([&] {
      const auto id = ParseCheckpointId(Last().id());
      return id && id->number >= number && cluster.Status("a").step() >= Last().step() + steps;
    })) << cluster.JobLog("a");
  }
  CheckpointInfo Create(const std::string& job = "a") {
    CreateCheckpointRequest request;
    request.set_name(job);
    const CallReply reply = cluster.Ask<event::CreateCheckpoint>(request);
    const auto* made = std::get_if<CreateCheckpointReply>(&reply);
    EXPECT_NE(made, nullptr);
    return made == nullptr ? CheckpointInfo() : made->checkpoint();
  }
  // Another process takes its place: what the shard had is lost.
  void Replace(const std::string& shard) { cluster.AddShard(shard); }
  void KillShards() {
    for (auto& [name, shard] : cluster.shards) shard.alive = false;
  }
  // The job has gone back, then the coordinator starts without the folder, and so do the shards.
  void ComeBackWithoutTheMount() {
    Submit(Job("a"));
    RunBeyond(1);
    KillShards();
    ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 1; }));
    cluster.mounted = false;
    cluster.StartCoordinator();
    for (const char* name : {"ps-0", "ps-1"}) Replace(name);
    cluster.RunFor(absl::Seconds(25));
  }
  bool GoesBack(uint32_t restarts = 1, const std::string& job = "a") {
    return Comes([&] {
      const JobStatus status = cluster.Status(job);
      return status.restarts() == restarts && status.state() == RUNNING;
    });
  }
  // As it is durable.
  JobDescription Description(uint64_t uid = 1) {
    StoredJob stored;
    EXPECT_TRUE(stored.ParseFromString(cluster.store[records::Job(uid)]));
    return stored.description();
  }
  // A job that continues that of the checkpoint; with `spec`, another one that begins with it.
  absl::Status SubmitFrom(const std::string& checkpoint, const std::string& name,
                          const std::optional<JobSpec>& spec = std::nullopt) {
    SubmitRequest request;
    request.set_from(checkpoint);
    if (spec) *request.mutable_spec() = *spec;
    if (!spec) request.set_name(name);
    const CallReply reply = cluster.Submit(request);
    const auto* error = std::get_if<absl::Status>(&reply);
    return error == nullptr ? absl::OkStatus() : *error;
  }
  // Of job a, which is then over.
  CheckpointInfo Leaves(uint64_t step) {
    Submit(Job("a", /*every_steps=*/0));
    EXPECT_TRUE(Comes([&] { return cluster.Status("a").step() > step; }));
    const CheckpointInfo made = Create();
    EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
    return made;
  }
  StoredJobState State() {
    StoredJobState state;
    EXPECT_TRUE(state.ParseFromString(cluster.store[records::JobState(1)]));
    return state;
  }
  std::string Reason() { return cluster.Status("a").reason(); }
  // As `explain` says it of job a.
  std::string WhyPending() {
    ExplainRequest request;
    request.set_name("a");
    const CallReply reply = cluster.Ask<event::Explain>(request);
    std::string text;
    for (const Finding& finding : std::get<ExplainReply>(reply).findings()) {
      if (finding.cause() == "pending") text = finding.text();
    }
    return text;
  }
  void CannotWrite(const std::string& why) {
    for (auto& [name, shard] : cluster.shards) shard.checkpoint_fails = why;
  }
};

TEST_F(RollbackTest, LostValuesAreThoseOfTheLastCheckpoint) {
  Submit(Job("a"));
  RunBeyond(1);
  const CheckpointInfo last = Last();
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  const JobDescription description = Description();
  EXPECT_EQ(description.run().era(), 1u);
  EXPECT_EQ(description.restore().checkpoint(), last.id());
  EXPECT_EQ(description.restore().mode(), Restore::CONTINUE);
  EXPECT_EQ(description.restore().step(), last.step());
  EXPECT_EQ(description.restore().manifest_digest(), last.manifest_digest());
  EXPECT_EQ(description.restore().policy().kind(), Policy::BSP);
  const JobStatus status = cluster.Status("a");
  EXPECT_EQ(status.era(), 1u);
  EXPECT_EQ(status.restarts_in_row(), 1u);
  EXPECT_EQ(status.restored_from(), last.id());
  EXPECT_EQ(status.reason(), "");
  EXPECT_THAT(
      status.last_restart(),
      AllOf(HasSubstr("shard ps-0 at ps-0:1 is gone (it was started again): lost partition"),
            HasSubstr(absl::StrCat("goes back to step ", last.step(), ", checkpoint ", last.id(),
                                   " (1 of at most 3 times"))));
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr(absl::StrCat("goes back to step ", last.step())));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 4, 100);
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
}

TEST_F(RollbackTest, OneOfTwoCopiesIsEnough) {
  JobSpec spec = Job("a");
  spec.set_durability(DURABILITY_REPLICATED);
  Submit(spec);
  RunBeyond(1);
  const JobStatus before = cluster.Status("a");
  ASSERT_EQ(before.partitions_whole(), before.partitions());
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Status("a").restarts(), 0u);
  EXPECT_GT(cluster.Status("a").failovers(), 0u);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, TheLossOfBothCopiesGoesBackOnce) {
  JobSpec spec = Job("a");
  spec.set_durability(DURABILITY_REPLICATED);
  Submit(spec);
  RunBeyond(1);
  KillShards();
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("a", PENDING); }));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(Reason(),
              AllOf(HasSubstr(": goes back to step "), HasSubstr("needs at least one shard")));
  EXPECT_THAT(WhyPending(), AllOf(HasSubstr(": goes back to step "),
                                  Not(HasSubstr("it goes back to a checkpoint"))))
      << "it has";
  EXPECT_EQ(State().views_size(), 0);
  EXPECT_EQ(State().roster().members_size(), 0);
  for (const char* name : {"ps-0", "ps-1"}) Replace(name);
  ASSERT_TRUE(GoesBack());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
  EachItemOnce(1, 4, 100);
}

// Though its shards come back late, and look for the folder first.
TEST_F(RollbackTest, GoesOnBeforeJobsThatNeverRanOnceShardsAreBack) {
  for (const absl::Duration away : {absl::Seconds(1), absl::Seconds(45)}) {
    SCOPED_TRACE(away);
    Submit(Job("a"));
    RunBeyond(1);
    Submit(Job("b", /*every_steps=*/0));  // there is one worker
    KillShards();
    ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 1; }));
    cluster.RunFor(away);
    for (const char* name : {"ps-0", "ps-1"}) Replace(name);
    ASSERT_TRUE(GoesBack()) << Reason();
    EXPECT_TRUE(cluster.IsIn("b", PENDING));
    EXPECT_TRUE(Ends("a", SUCCEEDED));
    EXPECT_TRUE(Ends("b", SUCCEEDED));
    for (const char* name : {"a", "b"}) ASSERT_TRUE(AskJob<event::DeleteJob>(name).ok());
  }
}

// It cannot go on for long, and does not keep its workers idle.
TEST_F(RollbackTest, OthersDoNotWaitForAJobThatLacksWorkers) {
  JobSpec spec = Job("a");
  spec.set_workers_min(2);
  spec.set_workers_max(2);
  cluster.AddWorker("worker-1");
  Submit(spec);
  RunBeyond(1);
  Submit(Job("b", /*every_steps=*/0));
  cluster.workers["worker-1"].drained = true;
  cluster.Round();
  cluster.workers["worker-1"].alive = false;
  Replace("ps-0");
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 1; }));
  cluster.RunFor(absl::Seconds(20));
  EXPECT_TRUE(cluster.IsIn("b", PENDING));
  EXPECT_THAT(cluster.Status("b").reason(), HasSubstr("lets job a go on first, which goes back"));
  EXPECT_TRUE(Comes([&] { return cluster.IsIn("b", RUNNING); })) << cluster.Status("b").reason();
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
}

TEST_F(RollbackTest, WithoutACheckpointTheJobEnds) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  Replace("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("lost partition"), Not(HasSubstr("maxRestarts"))));
  EXPECT_EQ(cluster.Status("a").restarts(), 0u);
}

TEST_F(RollbackTest, OneThatWasAskedForIsEnough) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_FALSE(cluster.Status("a").goes_back_on_stop());
  const CheckpointInfo made = Create();
  EXPECT_TRUE(cluster.Status("a").goes_back_on_stop());
  Replace("ps-0");
  ASSERT_TRUE(GoesBack());
  EXPECT_EQ(cluster.Status("a").restored_from(), made.id());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

// ---- How often ----

TEST_F(RollbackTest, GoesBackSoOftenAndNoMore) {
  JobSpec spec = Job("a");
  spec.set_restarts_max(2);
  Submit(spec);
  RunBeyond(1);
  CannotWrite("no space");
  for (uint32_t restarts = 1; restarts <= 2; ++restarts) {
    Replace("ps-0");
    CannotWrite("no space");
    ASSERT_TRUE(GoesBack(restarts)) << Reason();
    EXPECT_EQ(Description().run().era(), restarts);
    cluster.RunFor(absl::Seconds(1));
  }
  Replace("ps-1");
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_THAT(Reason(),
              AllOf(HasSubstr("has gone back 2 times since it last took a checkpoint"),
                    HasSubstr("(maxRestarts)"), HasSubstr("starling checkpoint restore")));
  EXPECT_EQ(cluster.Status("a").restarts(), 2u);
}

TEST_F(RollbackTest, AJobMayEndInstead) {
  JobSpec spec = Job("a");
  spec.set_restarts_max(0);
  Submit(spec);
  RunBeyond(1);
  EXPECT_FALSE(cluster.Status("a").goes_back_on_stop());
  Replace("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_THAT(Reason(), HasSubstr("does not go back by itself (maxRestarts: 0)"));
}

TEST_F(RollbackTest, ANewCheckpointIsProgress) {
  Submit(Job("a"));
  RunBeyond(1);
  CannotWrite("no space");
  Replace("ps-0");
  CannotWrite("no space");
  ASSERT_TRUE(GoesBack());
  EXPECT_EQ(cluster.Status("a").restarts_in_row(), 1u);
  const auto explains = [&] {
    ExplainRequest request;
    request.set_name("a");
    const CallReply reply = cluster.Ask<event::Explain>(request);
    for (const Finding& finding : std::get<ExplainReply>(reply).findings()) {
      if (finding.cause() == "went-back") return true;
    }
    return false;
  };
  EXPECT_TRUE(explains());
  CannotWrite("");
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts_in_row() == 0; }));
  EXPECT_EQ(State().restarts(), 0u);
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
  EXPECT_FALSE(explains());
}

TEST_F(RollbackTest, AShardThatIsAskedToStopDoesNotCount) {
  JobSpec spec = Job("a");
  spec.set_restarts_max(1);
  Submit(spec);
  RunBeyond(1);
  for (uint32_t restarts = 1; restarts <= 2; ++restarts) {
    CannotWrite("no space");
    cluster.disk_hangs = true;
    cluster.shards["ps-0"].drained = true;
    ASSERT_TRUE(Comes([&] { return cluster.IsIn("a", PENDING); })) << Reason();
    if (restarts == 1) cluster.StartCoordinator();  // it does not forget what it was
    cluster.disk_hangs = false;
    Replace("ps-0");
    CannotWrite("no space");
    ASSERT_TRUE(GoesBack(restarts)) << Reason();
    EXPECT_EQ(cluster.Status("a").restarts_in_row(), 0u);
    EXPECT_THAT(cluster.Status("a").last_restart(),
                HasSubstr("(which does not count, as the shard was asked to stop)"));
    cluster.RunFor(absl::Seconds(1));
  }
  Replace("ps-0");
  CannotWrite("no space");
  ASSERT_TRUE(GoesBack(3)) << Reason();
  EXPECT_EQ(cluster.Status("a").restarts_in_row(), 1u);
  // Not even once no more that count are left.
  EXPECT_EQ(cluster.Status("a").restarts_left(), 0u);
  EXPECT_TRUE(cluster.Status("a").goes_back_on_stop());
  cluster.shards["ps-0"].drained = true;
  ASSERT_TRUE(GoesBack(4)) << Reason();
}

// ---- Which shards ----

TEST_F(RollbackTest, AShardThatDoesNotSeeTheFolderGetsNothing) {
  Submit(Job("a"));
  RunBeyond(1);
  MiniCluster::MiniShard& blind = cluster.shards["ps-1"];
  const auto led = [&] {
    const JobReply job = cluster.Get("a");
    return std::count_if(job.views().begin(), job.views().end(),
                         [&](const View& view) { return view.primary() == blind.identity.id(); });
  };
  ASSERT_GT(led(), 0);
  blind.checkpoint_error = "no such folder";
  cluster.RunFor(absl::Seconds(1));
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(led(), 0);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, WaitsForAShardThatSeesTheFolder) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.shards["ps-1"].checkpoint_error = "no such folder";
  cluster.RunFor(absl::Seconds(1));
  Replace("ps-0");
  cluster.shards["ps-0"].checkpoint_error = "no such folder";
  cluster.RunFor(absl::Seconds(20));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("which too few shards can read: shard ps-0 does not see"),
                              HasSubstr("shard ps-1 does not see"), HasSubstr("no such folder")));
  cluster.shards["ps-0"].checkpoint_error.clear();
  ASSERT_TRUE(GoesBack()) << Reason();
}

TEST_F(RollbackTest, AShardThatCannotReadItsFirstValuesIsAskedAgain) {
  Submit(Job("a"));
  RunBeyond(1);
  Replace("ps-0");
  cluster.shards["ps-0"].refuses = "cannot read the checkpoint";
  ASSERT_TRUE(Comes([&] {
    return cluster.Status("a").restarts() == 1 && !State().rollback().empty();
  })) << Reason();
  EXPECT_THAT(Reason(), AllOf(HasSubstr("on ps-0: cannot read the checkpoint"),
                              HasSubstr("tries again in 10s at most")));
  cluster.shards["ps-0"].refuses.clear();
  ASSERT_TRUE(GoesBack(2)) << Reason();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 4, 100);
}

TEST_F(RollbackTest, NotForEver) {
  Submit(Job("a"));
  RunBeyond(1);
  Replace("ps-0");
  cluster.shards["ps-0"].refuses = "cannot read the checkpoint";
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("a", FAILED); }, absl::Minutes(2))) << Reason();
  EXPECT_EQ(cluster.Status("a").restarts(), 3u);
  EXPECT_THAT(Reason(), AllOf(HasSubstr("on ps-0: cannot read the checkpoint; the job has gone "
                                        "back 3 times since it last took a checkpoint"),
                              HasSubstr("starling checkpoint restore")));
}

// ---- Which checkpoint ----

TEST_F(RollbackTest, TheNextOlderOneIfTheNewestCannotBeRead) {
  Submit(Job("a"));
  RunBeyond(2);
  const CheckpointInfo newest = Last();
  const CheckpointId id = *ParseCheckpointId(newest.id());
  cluster.damaged[id] = absl::DataLossError("a digest is wrong");
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_THAT(cluster.read, ElementsAre(id.number, id.number - 1));
  EXPECT_LT(Description().restore().step(), newest.step());
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr(absl::StrCat("checkpoint ", newest.id(),
                                                          " cannot be read: a digest is wrong")));
  // It is none to go back to any more, and does not keep the next one from being due.
  ASSERT_TRUE(Comes([&] {
    const auto last = ParseCheckpointId(Last().id());
    return last && last->number > id.number;
  }));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 4, 100);
}

TEST_F(RollbackTest, WhatCouldNotBeReadIsLookedAtAgainForThoseWhoAskForIt) {
  Submit(Job("a"));
  RunBeyond(2);
  const std::string newest = Last().id();
  cluster.damaged[*ParseCheckpointId(newest)] = absl::DataLossError("a digest is wrong");
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  cluster.damaged.clear();
  EXPECT_THAT(std::string(SubmitFrom(newest, "b").message()),
              HasSubstr("cannot be read: a digest is wrong; it is looked at again within 10s"));
  cluster.RunFor(absl::Seconds(11));
  ASSERT_TRUE(SubmitFrom(newest, "b").ok());
  EXPECT_EQ(cluster.Status("b").restored_from(), newest);
}

// ---- The one that it began with ----

TEST_F(RollbackTest, WithoutOneOfItsOwnAJobGoesBackToTheOneThatItContinued) {
  const CheckpointInfo made = Leaves(110);
  ASSERT_TRUE(SubmitFrom(made.id(), "b").ok());
  ASSERT_TRUE(Comes([&] { return cluster.Status("b").step() > 220; }));
  Replace("ps-0");
  ASSERT_TRUE(GoesBack(1, "b")) << cluster.Status("b").reason();
  EXPECT_THAT(cluster.Status("b").last_restart(),
              HasSubstr(absl::StrCat("goes back to step ", made.step(), ", checkpoint ", made.id(),
                                     " (1 of at most 3 times")));
  EXPECT_EQ(Description(2).run().era(), 1u);
  EXPECT_EQ(Description(2).restore().step(), made.step());
  EXPECT_EQ(Description(2).restore().manifest_digest(), made.manifest_digest());
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  EachItemOnce(2, 4, 100);
  EXPECT_EQ(cluster.Status("b").epochs_done_size(), 4);
}

TEST_F(RollbackTest, AJobThatBeganWithTheValuesOfAnotherStartsOver) {
  const CheckpointInfo made = Leaves(110);
  JobSpec spec = Job("b", /*every_steps=*/0, Policy::SSP);
  ASSERT_TRUE(SubmitFrom(made.id(), "b", spec).ok());
  ASSERT_TRUE(Comes([&] { return cluster.Status("b").step() > 120; }));
  const Restore before = Description(2).restore();
  Replace("ps-0");
  ASSERT_TRUE(GoesBack(1, "b")) << cluster.Status("b").reason();
  EXPECT_THAT(cluster.Status("b").last_restart(),
              HasSubstr(absl::StrCat("goes back to step 0, checkpoint ", made.id())));
  EXPECT_EQ(Description(2).run().era(), 1u);
  EXPECT_EQ(Description(2).restore().SerializeAsString(), before.SerializeAsString());
  EXPECT_LT(cluster.Status("b").step(), 20u);
  EXPECT_EQ(cluster.Status("b").epochs_done_size(), 0);
  EXPECT_EQ(cluster.Status("b").policy(), "ssp(2)");
  cluster.StartCoordinator();
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  EachItemOnce(2, 4, 100);
  EXPECT_EQ(cluster.Status("b").epochs_done_size(), 4);
}

TEST_F(RollbackTest, ManyMayHaveBegunWithTheSameOne) {
  for (const bool damaged : {false, true}) {
    SCOPED_TRACE(damaged);
    const CheckpointInfo made = Leaves(10);
    cluster.AddWorker("worker-1");
    for (const char* name : {"b", "c"}) ASSERT_TRUE(SubmitFrom(made.id(), name).ok());
    ASSERT_TRUE(Comes([&] {
      return cluster.Status("b").step() > made.step() && cluster.Status("c").step() > made.step();
    }));
    if (damaged)
      cluster.damaged[*ParseCheckpointId(made.id())] = absl::DataLossError("a digest is wrong");
    cluster.read.clear();
    Replace("ps-0");
    for (const char* name : {"b", "c"}) {
      if (damaged) {
        EXPECT_TRUE(Ends(name, FAILED));
        EXPECT_THAT(cluster.Status(name).reason(), HasSubstr("cannot be read: a digest is wrong"));
      } else {
        EXPECT_TRUE(GoesBack(1, name)) << cluster.Status(name).reason();
      }
    }
    EXPECT_EQ(cluster.read.size(), 1u) << "it is read once for both";
    for (const char* name : {"b", "c"}) EXPECT_TRUE(Ends(name, damaged ? FAILED : SUCCEEDED));
    for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(AskJob<event::DeleteJob>(name).ok());
  }
}

TEST_F(RollbackTest, OnceItHasItsOwnItGoesBackToThat) {
  const CheckpointInfo made = Leaves(110);
  ASSERT_TRUE(SubmitFrom(made.id(), "b", Job("b", /*every_steps=*/30)).ok());
  ASSERT_TRUE(Comes([&] { return cluster.Status("b").checkpoint().has_last(); }));
  const std::string own = cluster.Status("b").checkpoint().last().id();
  Replace("ps-0");
  ASSERT_TRUE(GoesBack(1, "b")) << cluster.Status("b").reason();
  EXPECT_EQ(cluster.Status("b").restored_from(), own);
  EXPECT_EQ(Description(2).restore().mode(), Restore::CONTINUE);
}

// Where its own are gone, also after it has gone back to one of them.
TEST_F(RollbackTest, TheOneThatItBeganWithIsNotForgotten) {
  for (const bool continues : {false, true}) {
    SCOPED_TRACE(continues);
    const CheckpointInfo made = Leaves(110);
    const auto spec = continues ? std::nullopt : std::optional(Job("b", /*every_steps=*/0));
    ASSERT_TRUE(SubmitFrom(made.id(), "b", spec).ok());
    ASSERT_TRUE(Comes([&] { return cluster.Status("b").step() > made.step() + 5; }));
    const uint64_t uid = cluster.Status("b").uid();
    const Restore before = Description(uid).restore();
    const CheckpointInfo own = Create("b");
    Replace("ps-0");
    ASSERT_TRUE(GoesBack(1, "b")) << cluster.Status("b").reason();
    ASSERT_EQ(cluster.Status("b").restored_from(), own.id());
    const auto drops = [&](const CheckpointInfo& info) {
      DeleteCheckpointRequest request;
      request.set_id(info.id());
      return std::holds_alternative<Empty>(cluster.Ask<event::DeleteCheckpoint>(request));
    };
    EXPECT_FALSE(drops(made)) << "the job still needs it";
    cluster.damaged[*ParseCheckpointId(own.id())] = absl::DataLossError("a digest is wrong");
    cluster.StartCoordinator();
    cluster.RunFor(absl::Seconds(2));
    Replace("ps-0");
    ASSERT_TRUE(GoesBack(2, "b")) << cluster.Status("b").reason();
    EXPECT_EQ(Description(uid).restore().SerializeAsString(), before.SerializeAsString());
    EXPECT_EQ(Description(uid).run().era(), 2u);
    EXPECT_THAT(cluster.Status("b").last_restart(),
                HasSubstr(absl::StrCat("goes back to step ", continues ? made.step() : 0,
                                       ", checkpoint ", made.id())));
    EXPECT_TRUE(Ends("b", SUCCEEDED));
    EachItemOnce(uid, 4, 100);
    EXPECT_TRUE(drops(made)) << "the job is over";
    for (const char* name : {"a", "b"}) ASSERT_TRUE(AskJob<event::DeleteJob>(name).ok());
  }
}

TEST_F(RollbackTest, EndsIfNoneCanBeRead) {
  Submit(Job("a"));
  RunBeyond(2);
  for (const auto& [id, manifest] : cluster.checkpoints)
    cluster.damaged[id] = absl::DataLossError("a digest is wrong");
  Replace("ps-0");
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(Reason(),
              AllOf(HasSubstr("lost partition"), HasSubstr("cannot be read: a digest is wrong")));
  EXPECT_EQ(cluster.Status("a").restarts(), 0u);
  EXPECT_EQ(State().rollback(), "");
}

// A copy of the folder that was made earlier takes its place while the coordinator runs.
TEST_F(RollbackTest, BeforeItEndsTheFolderIsListedAgain) {
  Submit(Job("a"));
  RunBeyond(1);
  const auto older = cluster.checkpoints;
  RunBeyond(older.rbegin()->first.number + 2);
  cluster.checkpoints = older;
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").restored_from(), ToString(older.rbegin()->first));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, AManifestThatMakesNoSenseIsNotRead) {
  Submit(Job("a"));
  RunBeyond(1);
  for (auto& [id, manifest] : cluster.checkpoints) manifest.set_step(400);
  Replace("ps-0");
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(Reason(), HasSubstr("it is of step 400 of a job of 400 steps"));
}

TEST_F(RollbackTest, ADiskThatFailsIsAskedAgain) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.reads = absl::UnavailableError("the mount is gone");
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(25));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("cannot be read: the mount is gone; tries again in 10s"));
  EXPECT_GE(cluster.read.size(), 3u);
  cluster.reads = absl::OkStatus();
  ASSERT_TRUE(GoesBack());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, ADiskThatFailsForAMomentCostsNoProgress) {
  Submit(Job("a"));
  RunBeyond(2);
  const CheckpointInfo newest = Last();
  const CheckpointId id = *ParseCheckpointId(newest.id());
  cluster.damaged[id] = absl::PermissionDeniedError("an error of the disk");
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(5));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("an error of the disk; tries again in 10s"));
  cluster.damaged.clear();
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").restored_from(), newest.id());
  EXPECT_THAT(cluster.read, ElementsAre(id.number, id.number));
}

TEST_F(RollbackTest, TheOlderOneIfTheDiskFailsWithTheNewestForLong) {
  Submit(Job("a"));
  RunBeyond(2);
  const CheckpointId id = *ParseCheckpointId(Last().id());
  cluster.damaged[id] = absl::UnavailableError("an error of the disk");
  Replace("ps-0");
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("a", RUNNING); }, absl::Minutes(1))) << Reason();
  EXPECT_THAT(cluster.read, ElementsAre(id.number, id.number, id.number, id.number - 1));
}

TEST_F(RollbackTest, AFolderThatIsNotMountedIsWaitedFor) {
  Submit(Job("a"));
  RunBeyond(2);
  const std::string last = Last().id();
  cluster.mounted = false;
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(25));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("cannot be read: its nonce is missing; tries again in 10s"));
  const std::string log = cluster.JobLog("a"), line = "cannot be read: its nonce is missing";
  EXPECT_EQ(log.find(line), log.rfind(line)) << "it is said once: " << log;
  cluster.mounted = true;
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").restored_from(), last);
}

TEST_F(RollbackTest, AFolderThatIsNotMountedAtAStartIsWaitedFor) {
  Submit(Job("a"));
  RunBeyond(1);
  const std::string last = Last().id();
  cluster.mounted = false;
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(25));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("its nonce is missing"));
  cluster.mounted = true;
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").restored_from(), last);
}

// Its shards cannot know the folder before that has its nonce.
TEST_F(RollbackTest, AStartWithoutTheMountKeepsAJobThatCameBackWaiting) {
  ASSERT_NO_FATAL_FAILURE(ComeBackWithoutTheMount());
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("are not listed yet: its nonce is missing"),
                              Not(HasSubstr("does not see"))));
  cluster.mounted = true;
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, AStartWithoutTheMountDoesNotMarkWhatLiesBeneathIt) {
  Submit(Job("a"));
  RunBeyond(1);
  const std::string last = Last().id();
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  KillShards();
  cluster.RunFor(absl::Minutes(1));
  ASSERT_TRUE(SubmitFrom(last, "b").ok());
  cluster.mounted = false;
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  cluster.mounted = true;
  for (const char* name : {"ps-0", "ps-1"}) Replace(name);
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("b", RUNNING); })) << cluster.Status("b").reason();
  EXPECT_TRUE(Ends("b", SUCCEEDED));
}

// Shards that read the nonce late are not passed over.
TEST_F(RollbackTest, AShardThatWasThereBeforeTheMountMayStillLook) {
  ASSERT_NO_FATAL_FAILURE(ComeBackWithoutTheMount());
  cluster.shards["ps-1"].checkpoint_looks = false;
  cluster.mounted = true;
  ASSERT_TRUE(Comes([&] { return !absl::StrContains(Reason(), "are not listed yet"); }));
  cluster.RunFor(absl::Seconds(5));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("shard ps-1 does not see"));
  cluster.shards["ps-1"].checkpoint_looks = true;
  ASSERT_TRUE(GoesBack()) << Reason();
  std::set<uint32_t> primaries;
  const JobReply job = cluster.Get("a");
  for (const View& view : job.views()) primaries.insert(view.primary());
  EXPECT_EQ(primaries.size(), 2u);
}

// ---- A coordinator that outlives its successor's start ----

TEST_F(RollbackTest, ANonceThatAnEarlierCoordinatorWroteLateIsWrittenOver) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.RunFor(absl::Seconds(11));  // after its own was written
  cluster.root_nonce = 999;
  Replace("ps-0");  // it sees that one, and so does who reads
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_NE(cluster.root_nonce, 999u);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, AReadThatMissesItsNonceIsEnoughToWriteItAgain) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.RunFor(absl::Seconds(11));
  for (auto& [name, shard] : cluster.shards) shard.checkpoint_looks = false;
  cluster.root_nonce = 999;
  cluster.shards["ps-0"].drained = true;
  ASSERT_TRUE(Comes([&] { return cluster.root_nonce != 999; })) << Reason();
  cluster.shards["ps-0"].alive = false;
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, AShardThatSeesAnothersNonceIsEnoughToWriteItAgain) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  CreateCheckpointRequest request;
  request.set_name("a");
  for (auto& [name, shard] : cluster.shards) shard.checkpoint_waits = true;
  const CallId call = cluster.NewCall();
  cluster.Step(event::CreateCheckpoint{call, request});
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").checkpoint().stage() == "cutting"; }));
  ASSERT_FALSE(cluster.folders.empty());
  cluster.root_nonce = 999;
  ASSERT_TRUE(Comes([&] { return cluster.root_nonce != 999; }));
  EXPECT_FALSE(cluster.folders.empty()) << "what is being taken stays";
  for (auto& [name, shard] : cluster.shards) shard.checkpoint_waits = false;
  const CallReply reply = cluster.Await(call);
  EXPECT_TRUE(std::holds_alternative<CreateCheckpointReply>(reply));
}

// A folder that takes nothing new can be read all the same.
TEST_F(RollbackTest, WithoutRoomForTheNonceWhatIsThereIsRead) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.RunFor(absl::Seconds(11));
  cluster.root_nonce = 999;
  cluster.marks = absl::ResourceExhaustedError("no space");
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  cluster.RunFor(absl::Seconds(1));
  CreateCheckpointRequest request;
  request.set_name("a");
  const CallReply refused = cluster.Ask<event::CreateCheckpoint>(request);
  EXPECT_THAT(std::string(std::get<absl::Status>(refused).message()), HasSubstr("no space"));
  cluster.marks = absl::OkStatus();
  ASSERT_TRUE(Comes([&] { return cluster.root_nonce != 999; }));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, WhatOnlyLacksItsManifestIsWaitedFor) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  CreateCheckpointRequest request;
  request.set_name("a");
  const CallId call = cluster.NewCall();
  cluster.Step(event::CreateCheckpoint{call, request});
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").checkpoint().stage() == "writing"; }));
  cluster.disk_hangs = true;
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").checkpoint().stage() == "sealing"; }));
  Replace("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("waits for the checkpoint that is being sealed"));
  cluster.disk_hangs = false;
  ASSERT_TRUE(GoesBack());
  const CallReply reply = cluster.Await(call);
  EXPECT_EQ(cluster.Status("a").restored_from(),
            std::get<CreateCheckpointReply>(reply).checkpoint().id());
}

TEST_F(RollbackTest, AnAttemptUnderWayIsMadeAnewForThoseWhoAskedForIt) {
  Submit(Job("a"));
  RunBeyond(1);
  for (auto& [name, shard] : cluster.shards) shard.checkpoint_waits = true;
  CreateCheckpointRequest request;
  request.set_name("a");
  const CallId call = cluster.NewCall();
  cluster.Step(event::CreateCheckpoint{call, request});
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").checkpoint().stage() == "cutting"; }));
  Replace("ps-0");
  for (auto& [name, shard] : cluster.shards) shard.checkpoint_waits = false;
  const CallReply reply = cluster.Await(call);
  ASSERT_TRUE(std::holds_alternative<CreateCheckpointReply>(reply));
  EXPECT_EQ(cluster.Status("a").era(), 1u);
  EXPECT_TRUE(cluster.folders.empty());
}

// ---- The coordinator restarts ----

TEST_F(RollbackTest, ACoordinatorThatRestartsMeanwhileGoesOnWithIt) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.disk_hangs = true;
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(Reason(), HasSubstr("reads checkpoint "));
  EXPECT_EQ(Description().run().era(), 0u);
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(Reason(), HasSubstr("are not listed yet"));
  cluster.disk_hangs = false;
  ASSERT_TRUE(GoesBack());
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
  EXPECT_EQ(Description().run().era(), 1u);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 4, 100);
}

TEST_F(RollbackTest, ShardsThatNeverComeBackAfterAStartAreALoss) {
  JobSpec spec = Job("a");
  spec.set_durability(DURABILITY_REPLICATED);
  Submit(spec);
  RunBeyond(1);
  const CheckpointInfo last = Last();
  KillShards();
  cluster.workers["worker-0"].alive = false;
  cluster.StartCoordinator();
  for (const char* name : {"ps-2", "ps-3"}) cluster.AddShard(name);
  cluster.AddWorker("worker-1");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(Description().restore().checkpoint(), last.id());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
  EachItemOnce(1, 4, 100);
}

TEST_F(RollbackTest, AStartWithoutAFolderEndsWhatWaitsForIt) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.disk_hangs = true;
  Replace("ps-0");
  CoordinatorOptions options;
  options.checkpoint_root = "";
  cluster.UseOptions(options);
  cluster.StartCoordinator();
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("lost partition"), HasSubstr("--checkpoint-root")));
}

// Shards may see the checkpoints all the same, and say so if they do not.
TEST_F(RollbackTest, AStartWithoutAFolderStartsWhatHasGoneBack) {
  Submit(Job("a"));
  RunBeyond(1);
  KillShards();
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 1; }));
  CoordinatorOptions options;
  options.checkpoint_root = "";
  cluster.UseOptions(options);
  cluster.StartCoordinator();
  for (const char* name : {"ps-0", "ps-1"}) Replace(name);
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, ALeaveOfTheLastShardIsALoss) {
  Submit(Job("a"));
  RunBeyond(1);
  for (auto& [name, shard] : cluster.shards) shard.drained = true;
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("a", PENDING); }));
  for (const char* name : {"ps-0", "ps-1"}) Replace(name);
  ASSERT_TRUE(GoesBack());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

// ---- What lies behind the cut ----

TEST_F(RollbackTest, ResultsAndPointsBehindTheCutAreDeleted) {
  JobSpec spec = Job("a", /*every_steps=*/0);
  spec.set_tensorboard("/runs/a");
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() > 110; }));
  const CheckpointInfo made = Create();
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").step() > 220; }));
  ASSERT_EQ(cluster.Status("a").epochs_done_size(), 2);
  cluster.curve_news.clear();
  Replace("ps-0");
  ASSERT_TRUE(GoesBack());
  cluster.RunFor(absl::Seconds(1));
  ASSERT_FALSE(cluster.curve_news.empty());
  EXPECT_EQ(cluster.curve_news.front().session_step, made.step() + 1)
      << "event files of earlier sessions are void from there on";
  const auto check = [&] {
    const JobStatus status = cluster.Status("a");
    ASSERT_EQ(status.epochs_done_size(), 1);
    EXPECT_EQ(status.epochs_done(0).step(), 100u);
    EXPECT_LT(status.step(), 200u);
    EXPECT_TRUE(cluster.store.contains(records::JobResult(1, 0)));
    EXPECT_FALSE(cluster.store.contains(records::JobResult(1, 1)));
    for (const auto& [key, value] : cluster.store) {
      if (!absl::StrContains(key, "/curve/")) continue;
      StoredCurve curve;
      ASSERT_TRUE(curve.ParseFromString(value));
      for (const CurvePoint& point : curve.points()) EXPECT_LE(point.step(), status.step());
    }
  };
  check();
  cluster.StartCoordinator();
  cluster.RunFor(absl::Milliseconds(200));
  check();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.Status("a").epochs_done_size(), 4);
}

TEST_F(RollbackTest, ThePolicyIsThatOfTheCheckpoint) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  Create();
  SetPolicyRequest request;
  request.set_name("a");
  request.mutable_policy()->set_kind(Policy::SSP);
  request.mutable_policy()->set_staleness(1);
  cluster.Ask<event::SetPolicy>(request);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").policy() == "ssp(1)"; }));
  cluster.disk_hangs = true;
  Replace("ps-0");
  const CallReply refused = cluster.Ask<event::SetPolicy>(request);
  EXPECT_TRUE(absl::IsUnavailable(std::get<absl::Status>(refused)));
  cluster.disk_hangs = false;
  ASSERT_TRUE(GoesBack());
  EXPECT_EQ(cluster.Status("a").policy(), "bsp");
  EXPECT_TRUE(cluster.Status("a").reproducible());
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("is void: policy ssp(1)"));
  // It may be asked for again.
  cluster.Ask<event::SetPolicy>(request);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").policy() == "ssp(1)"; }));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, ExplainSaysInASentenceWhatAJobThatGoesBackWaitsFor) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.disk_hangs = true;
  Replace("ps-0");
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("a", PENDING); }));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(WhyPending(), AllOf(HasSubstr(": it goes back to a checkpoint: shard ps-0 at"),
                                  HasSubstr("; reads checkpoint ")));
}

TEST_F(RollbackTest, APolicyThatWasSetBeforeItWentOnIsVoidTheNextTime) {
  Submit(Job("a"));
  RunBeyond(1);
  KillShards();
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 1; }));
  ASSERT_TRUE(cluster.IsIn("a", PENDING));
  SetPolicyRequest request;
  request.set_name("a");
  request.mutable_policy()->set_kind(Policy::SSP);
  request.mutable_policy()->set_staleness(1);
  cluster.Ask<event::SetPolicy>(request);
  for (const char* name : {"ps-0", "ps-1"}) Replace(name);
  CannotWrite("no space");
  ASSERT_TRUE(GoesBack());
  EXPECT_EQ(cluster.Status("a").policy(), "ssp(1)");
  Replace("ps-0");
  ASSERT_TRUE(GoesBack(2));
  EXPECT_EQ(cluster.Status("a").policy(), "bsp");
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("is void: policy ssp(1)"));
}

TEST_F(RollbackTest, TheEndByWallTimeIsNoPolicyThatWasAskedFor) {
  JobSpec spec = Job("a", /*every_steps=*/5);
  spec.mutable_stop()->set_wall_time_seconds(3);
  Submit(spec);
  ASSERT_TRUE(Comes([&] { return absl::StrContains(cluster.JobLog("a"), "wallTime is over"); }));
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_THAT(cluster.JobLog("a"), Not(HasSubstr("is void")));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, LeasesBehindTheCutAreVoid) {
  Submit(Job("a", 30, Policy::SSP));
  RunBeyond(1, /*steps=*/8);
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 4, 100);
}

// ---- What is of an earlier era ----

TEST_F(RollbackTest, AWorkerOfTheEarlierEraIsNoMember) {
  Submit(Job("a"));
  RunBeyond(1);
  MiniCluster::MiniWorker& worker = cluster.workers["worker-0"];
  worker.stubborn = true;
  Replace("ps-0");
  ASSERT_TRUE(GoesBack());
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(worker.run.era(), 0u);
  EXPECT_EQ(worker.orders.run().era(), 1u) << "it may be ordered to the next one at once";
  EXPECT_EQ(cluster.Status("a").workers(), 0u) << "it is prepared for the earlier one";
  worker.run = worker.orders.run();
  worker.stubborn = false;
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, ReportsOfTheEarlierEraCountForNothing) {
  Submit(Job("a"));
  RunBeyond(1);
  const starling::Run earlier = Description().run();
  Replace("ps-0");
  ASSERT_TRUE(GoesBack());
  cluster.RunFor(absl::Seconds(1));
  const JobStatus before = cluster.Status("a");
  MiniCluster::MiniShard& shard = cluster.shards["ps-1"];
  ShardReport report;
  report.set_shard(shard.identity.id());
  report.set_incarnation(shard.identity.incarnation());
  report.set_sequence(++shard.sequence);
  report.set_generation(shard.generation);
  report.set_orders_seen(shard.orders_seen);
  report.set_memory_room(cluster.memory_room);
  const JobReply running = cluster.Get("a");
  for (const View& view : running.views()) {
    PartitionStatus& status = *report.add_partitions();
    *status.mutable_run() = earlier;
    status.set_partition(view.partition());
    status.set_view(view.number());
    status.set_fault("copies differ");
  }
  HeldJob& held = *report.add_held();
  *held.mutable_run() = earlier;
  held.mutable_checkpoint()->set_number(State().last_checkpoint());
  held.mutable_checkpoint()->set_state(CheckpointPart::FAILED);
  cluster.Step(event::ShardReport{cluster.NewCall(), report});
  MiniCluster::MiniWorker& worker = cluster.workers["worker-0"];
  WorkerReport fault;
  fault.set_worker(worker.identity.id());
  fault.set_incarnation(worker.identity.incarnation());
  fault.set_sequence(++worker.sequence);
  fault.set_generation(worker.generation);
  fault.set_orders_seen(worker.orders_seen);
  *fault.mutable_run() = earlier;
  fault.mutable_fault()->set_kind(Fault::NON_FINITE);
  *fault.mutable_fault()->mutable_run() = earlier;
  StepMetrics& metrics = *fault.add_finished();
  metrics.mutable_work()->set_purpose(TRAIN);
  metrics.mutable_work()->set_epoch(before.epoch());
  metrics.mutable_work()->set_first(4 * 99);
  metrics.mutable_work()->set_count(4);
  metrics.set_samples(4);
  metrics.set_loss_sum(4e6);
  cluster.Step(event::WorkerReport{cluster.NewCall(), fault});
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << Reason();
  EXPECT_LT(cluster.Status("a").train_loss(), 1);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 4, 100);
}

// ---- Values that are not finite ----

class NonFiniteRollbackTest : public RollbackTest {
 protected:
  static JobSpec GoesBackJob() {
    JobSpec spec = Job("a");
    spec.set_go_back_if_not_finite(true);
    return spec;
  }
  // Its only worker finds the same twice.
  void Diverges() {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(Comes([&] { return cluster.Status("a").workers() == 1; }));
      cluster.Round();
      Finds("worker-0", 99);
    }
  }
  // Three times worker-1 finds something that worker-0 then does.
  void IsQuarantined() {
    for (int time = 1; time <= 3; ++time) {
      ASSERT_TRUE(Comes([&] {
        const JobStatus status = cluster.Status("a");
        return status.workers() == 2 && status.step() % 100 < 40;
      })) << Reason();
      cluster.RunFor(absl::Seconds(0.2));
      Finds("worker-1", cluster.Status("a").step() % 100 + 40);
      ASSERT_TRUE(Comes([&] {
        return absl::StrContains(cluster.JobLog("a"), absl::StrCat("did not, time ", time));
      }));
    }
    EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-1 is quarantined"));
  }
};

TEST_F(NonFiniteRollbackTest, WhereAJobDivergesItGoesBackOnceIfItAsksForThat) {
  Submit(GoesBackJob());
  RunBeyond(1);
  const uint64_t step = Last().step();
  ASSERT_NO_FATAL_FAILURE(Diverges());
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(Description().restore().step(), step);
  EXPECT_THAT(cluster.Status("a").last_restart(), HasSubstr("so it is the job's own: goes back"));
  cluster.StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(Diverges());
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("has gone back to a checkpoint for that before"),
                              HasSubstr("can be continued from checkpoint")));
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
}

TEST_F(NonFiniteRollbackTest, OnceItHasPassedWhereItDivergedItMayGoBackAgain) {
  Submit(GoesBackJob());
  RunBeyond(1);
  ASSERT_NO_FATAL_FAILURE(Diverges());
  ASSERT_TRUE(GoesBack(1)) << Reason();
  RunBeyond(2);
  ASSERT_NO_FATAL_FAILURE(Diverges());
  EXPECT_TRUE(GoesBack(2)) << Reason();
}

TEST_F(NonFiniteRollbackTest, WhereItMayNotGoBackItsEndSaysFromWhatToContinue) {
  for (const bool asks : {true, false}) {
    JobSpec spec = GoesBackJob();
    spec.set_go_back_if_not_finite(asks);
    spec.set_restarts_max(0);
    Submit(spec);
    RunBeyond(1);
    const std::string last = Last().id();
    ASSERT_NO_FATAL_FAILURE(Diverges());
    EXPECT_TRUE(cluster.IsIn("a", FAILED));
    EXPECT_THAT(Reason(), HasSubstr(absl::StrCat("continued from checkpoint ", last)));
    EXPECT_EQ(absl::StrContains(Reason(), "maxRestarts: 0"), asks) << Reason();
    ASSERT_TRUE(AskJob<event::DeleteJob>("a").ok());
  }
}

// The coordinator does not know yet whether there is a checkpoint.
TEST_F(NonFiniteRollbackTest, AQuarantineAloneDropsNoValuesForACheckpointThatMayNotBeThere) {
  JobSpec spec = GoesBackJob();
  spec.set_workers_max(2);
  Submit(spec);
  cluster.AddWorker("worker-1");
  RunBeyond(1);
  cluster.disk_hangs = true;
  cluster.StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(IsQuarantined());
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << Reason();
  cluster.disk_hangs = false;
  EXPECT_TRUE(Ends("a", SUCCEEDED)) << Reason();
  EXPECT_EQ(cluster.Status("a").restarts(), 0u);
}

TEST_F(NonFiniteRollbackTest, AfterAQuarantineAJobGoesBackOnceIfItAsksForThat) {
  for (const bool asks : {true, false}) {
    JobSpec spec = GoesBackJob();
    spec.set_workers_max(2);
    spec.set_go_back_if_not_finite(asks);
    Submit(spec);
    cluster.AddWorker("worker-1");
    RunBeyond(1);
    ASSERT_NO_FATAL_FAILURE(IsQuarantined());
    ASSERT_TRUE(Ends("a", SUCCEEDED)) << Reason();
    EXPECT_EQ(cluster.Status("a").restarts(), asks ? 1u : 0u);
    if (asks) {
      EXPECT_THAT(cluster.Status("a").last_restart(),
                  AllOf(HasSubstr("worker-1 is quarantined"), HasSubstr("goes back to step ")));
      EachItemOnce(1, 4, 100);
    }
    ASSERT_TRUE(AskJob<event::DeleteJob>("a").ok());
  }
}

// In SSP, too, where no other job minds.
TEST_F(NonFiniteRollbackTest, AQuarantineForTheJobOutlastsItsEra) {
  JobSpec spec = Job("a", /*every_steps=*/30, Policy::SSP);
  spec.mutable_stop()->set_epochs(8);
  spec.set_go_back_if_not_finite(true);
  spec.set_workers_max(2);
  Submit(spec);
  cluster.AddWorker("worker-1");
  RunBeyond(1);
  ASSERT_NO_FATAL_FAILURE(IsQuarantined());
  ASSERT_TRUE(GoesBack()) << Reason();
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Status("a").workers(), 1u) << cluster.JobLog("a");
  EXPECT_TRUE(Ends("a", SUCCEEDED)) << Reason();
}

TEST_F(NonFiniteRollbackTest, SumsThatAreNotFiniteAreTheJobsOwn) {
  Submit(GoesBackJob());
  RunBeyond(1);
  cluster.shards["ps-0"].refuses = "the sum of the workers' gradients is not finite";
  cluster.shards["ps-0"].diverges = true;
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").era() == 1; })) << Reason();
  cluster.shards["ps-0"].refuses.clear();
  cluster.shards["ps-0"].diverges = false;
  EXPECT_TRUE(Ends("a", SUCCEEDED)) << Reason();
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
}

// ---- Beside others ----

TEST_F(RollbackTest, ComesBeforeJobsThatNeverRan) {
  Submit(Job("a"));
  RunBeyond(1);
  Submit(Job("b"));  // there is one worker
  cluster.disk_hangs = true;
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(5));
  EXPECT_TRUE(cluster.IsIn("b", PENDING)) << "the worker is kept while a checkpoint is read";
  EXPECT_THAT(cluster.Status("b").reason(), HasSubstr("lets job a go on first, which goes back"));
  cluster.disk_hangs = false;
  ASSERT_TRUE(GoesBack());
  EXPECT_TRUE(cluster.IsIn("b", PENDING));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_TRUE(Ends("b", SUCCEEDED));
}

TEST_F(RollbackTest, ACoordinatorThatRestartsKeepsTheWorkersToo) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.workers["worker-0"].idle_hands = true;
  cluster.RunFor(absl::Minutes(1));  // since it was submitted
  ASSERT_TRUE(cluster.IsIn("a", RUNNING)) << Reason();
  Submit(Job("b"));
  cluster.disk_hangs = true;
  Replace("ps-0");
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(15));
  EXPECT_TRUE(cluster.IsIn("b", PENDING));
  cluster.workers["worker-0"].idle_hands = false;
  cluster.disk_hangs = false;
  ASSERT_TRUE(GoesBack()) << Reason();
}

TEST_F(RollbackTest, OthersDoNotWaitForADiskThatHangs) {
  Submit(Job("a"));
  RunBeyond(1);
  Submit(Job("b", /*every_steps=*/0));
  cluster.disk_hangs = true;
  Replace("ps-0");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.IsIn("b", RUNNING); }, absl::Minutes(1)));
  EXPECT_TRUE(Ends("b", SUCCEEDED));
  cluster.disk_hangs = false;
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, MayBeCancelledMeanwhile) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.disk_hangs = true;
  Replace("ps-0");
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  cluster.disk_hangs = false;
  cluster.RunFor(absl::Seconds(2));
  EXPECT_TRUE(cluster.IsIn("a", CANCELLED));
  EXPECT_EQ(Description().run().era(), 0u);
  EXPECT_TRUE(AskJob<event::DeleteJob>("a").ok());
}

TEST_F(RollbackTest, ItsSourceStaysWhileItIsRead) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.disk_hangs = true;
  Replace("ps-0");
  DeleteCheckpointRequest request;
  request.set_id(Last().id());
  const CallReply reply = cluster.Ask<event::DeleteCheckpoint>(request);
  EXPECT_TRUE(absl::IsFailedPrecondition(std::get<absl::Status>(reply)));
  cluster.disk_hangs = false;
  EXPECT_TRUE(GoesBack());
}

}  // namespace
}  // namespace starling::coordinator
