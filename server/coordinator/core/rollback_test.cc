// A job that has lost values goes back to its newest checkpoint, in a new era.
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/testing/rollback_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_THAT(WhyPending(),
              AllOf(HasSubstr(" s: it needs at least one shard: start one with "),
                    HasSubstr("; it went back: shard ps-"), HasSubstr(": goes back to step ")));
  EXPECT_EQ(State().views_size(), 0);
  EXPECT_EQ(State().roster().members_size(), 0);
  for (const char* name : {"ps-0", "ps-1"}) Replace(name);
  ASSERT_TRUE(GoesBack());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
  EachItemOnce(1, 4, 100);
}

TEST_F(RollbackTest, OneThatWasAskedForIsEnough) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo made = Create();
  EXPECT_TRUE(cluster.Status("a").goes_back_on_stop());
  Replace("ps-0");
  ASSERT_TRUE(GoesBack());
  EXPECT_EQ(cluster.Status("a").restored_from(), made.id());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

// ---- Without a checkpoint ----

TEST_F(RollbackTest, WithoutACheckpointAJobBeginsAgain) {
  Submit(Job("a", /*every_steps=*/0));
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").epochs_done_size() > 0; }));
  EXPECT_TRUE(cluster.Status("a").goes_back_on_stop());
  const uint64_t step = cluster.Status("a").step();
  Replace("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_EQ(Description().run().era(), 0u) << "the loss is durable before the next era begins";
  EXPECT_THAT(Reason(), HasSubstr("; begins again with its first values"));
  EXPECT_THAT(WhyPending(), HasSubstr(": it begins again: shard ps-0 at"));
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(Description().run().era(), 1u);
  EXPECT_FALSE(Description().has_restore());
  const JobStatus status = cluster.Status("a");
  EXPECT_EQ(status.era(), 1u);
  EXPECT_LT(status.step(), 20u);
  EXPECT_EQ(status.epochs_done_size(), 0) << "what was reported is void";
  EXPECT_EQ(status.restored_from(), "");
  EXPECT_TRUE(status.reproducible());
  EXPECT_THAT(status.last_restart(),
              AllOf(HasSubstr("shard ps-0 at ps-0:1 is gone (it was started again): lost "),
                    HasSubstr(absl::StrCat(" parameters, at step ", step,
                                           ": begins again with its first values, at step 0 (1 of "
                                           "at most 3 times without a new checkpoint)"))));
  EXPECT_THAT(cluster.JobLog("a"),
              AllOf(HasSubstr(": there is no checkpoint to go back to"),
                    HasSubstr("begins again with its first values, at step 0")));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 4, 100);
  EXPECT_EQ(cluster.Status("a").epochs_done_size(), 4);
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
}

TEST_F(RollbackTest, SoItDoesOnAClusterWithoutAFolder) {
  CoordinatorOptions options;
  options.checkpoint_root = "";
  cluster.UseOptions(options);
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  Submit(Job("a", /*every_steps=*/0, Policy::SSP));
  cluster.RunFor(absl::Seconds(1));
  KillShards();
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("a", PENDING); }));
  for (const char* name : {"ps-0", "ps-1"}) Replace(name);
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 4, 100);
}

TEST_F(RollbackTest, TheLossOutlivesTheCoordinator) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  Replace("ps-0");
  ASSERT_TRUE(cluster.IsIn("a", PENDING));
  cluster.lists = absl::UnavailableError("EIO");
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(5));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("lost partition"), HasSubstr("are not listed yet: EIO")))
      << "there may be a checkpoint";
  cluster.lists = absl::OkStatus();
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_FALSE(Description().has_restore());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, AJobBeginsAgainSoOftenAndNoMore) {
  JobSpec spec = Job("a", /*every_steps=*/0);
  spec.set_restarts_max(2);
  Submit(spec);
  for (uint32_t restarts = 1; restarts <= 2; ++restarts) {
    cluster.RunFor(absl::Seconds(1));
    Replace("ps-0");
    ASSERT_TRUE(GoesBack(restarts)) << Reason();
  }
  cluster.RunFor(absl::Seconds(1));
  Replace("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_THAT(Reason(), HasSubstr("; the job has begun again 2 times without taking a checkpoint, "
                                  "which is the maximum (maxRestarts)"));
  Submit(Once(Job("b", /*every_steps=*/0)));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_FALSE(cluster.Status("b").goes_back_on_stop());
  Replace("ps-0");
  EXPECT_TRUE(cluster.IsIn("b", FAILED));
  EXPECT_THAT(cluster.Status("b").reason(),
              HasSubstr("the job does not begin again by itself (maxRestarts: 0)"));
}

// There are values, which people may be able to mend.
TEST_F(RollbackTest, WithACheckpointThatCannotBeReadAJobDoesNotBeginAgain) {
  Submit(Job("a"));
  RunBeyond(1);
  const std::string id = Last().id();
  cluster.unreadable[*ParseCheckpointId(id)] = "a digest is wrong";
  cluster.checkpoints.clear();
  cluster.StartCoordinator();
  CannotWrite("no space");
  cluster.RunFor(absl::Seconds(2));
  Replace("ps-0");
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(Reason(),
              AllOf(HasSubstr("lost partition"), HasSubstr(absl::StrCat("; checkpoint ", id,
                                                                        " cannot be read: a "
                                                                        "digest is wrong"))));
  EXPECT_EQ(cluster.Status("a").restarts(), 0u);
}

TEST_F(RollbackTest, WhatWasThereAndIsMissingIsNotTakenForNone) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo own = Create();
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  ASSERT_EQ(cluster.Status("a").restored_from(), own.id());
  const CheckpointInfo other = Create();
  Replace("ps-0");
  ASSERT_TRUE(GoesBack(2)) << Reason();
  ASSERT_EQ(cluster.Status("a").restored_from(), other.id());
  // As if an older copy of the folder had been put in its place, and the coordinator had started
  // since.
  cluster.checkpoints.clear();
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(2));
  Replace("ps-0");
  EXPECT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(Reason(), AllOf(HasSubstr(absl::StrCat("checkpoint ", other.id(), " cannot be read")),
                              HasSubstr("and is there no more")));
}

TEST_F(RollbackTest, AfterItsCheckpointsWereDeletedOnRequestAJobBeginsAgain) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  for (const std::string& id : {Create().id(), Create().id()}) {
    DeleteCheckpointRequest request;
    request.set_id(id);
    cluster.Ask<event::DeleteCheckpoint>(request);
    cluster.RunFor(absl::Seconds(1));
  }
  ASSERT_TRUE(cluster.checkpoints.empty());
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(2));
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_FALSE(Description().has_restore());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EachItemOnce(1, 4, 100);
}

// The loss comes before the list, which has its only checkpoint as one that cannot be read.
TEST_F(RollbackTest, AnUnreadableCheckpointThatIsListedLaterIsNamed) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  const CheckpointInfo own = Create();
  cluster.checkpoints.clear();
  cluster.lists = absl::UnavailableError("no folder");
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(2));
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(2));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  cluster.lists = absl::OkStatus();
  EXPECT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(Reason(), HasSubstr(absl::StrCat("checkpoint ", own.id(), " cannot be read")));
}

TEST_F(RollbackTest, ThePolicyIsThatOfTheJobFile) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  SetPolicyRequest request;
  request.set_name("a");
  request.mutable_policy()->set_kind(Policy::SSP);
  request.mutable_policy()->set_staleness(1);
  cluster.Ask<event::SetPolicy>(request);
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").policy() == "ssp(1)"; }));
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").policy(), "bsp");
  EXPECT_TRUE(cluster.Status("a").reproducible());
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("is void: policy ssp(1)"));
}

TEST_F(RollbackTest, ToBeginAgainDoesNotCountWhereTheShardWasAskedToStop) {
  JobSpec spec = Job("a", /*every_steps=*/0);
  spec.set_restarts_max(1);
  Submit(spec);
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-0"].drained = true;
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("a", PENDING); })) << Reason();
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").restarts_in_row(), 0u);
  EXPECT_THAT(cluster.Status("a").last_restart(),
              HasSubstr("at step 0 (which does not count, as the shard was asked to stop)"));
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

// Nor does one more than `keep` stay: that which it went back to is not needed any longer.
TEST_F(RollbackTest, WhatItWentBackToGoesOnceThereIsANewerOne) {
  Submit(Job("a"));
  RunBeyond(2);
  const CheckpointId source = *ParseCheckpointId(Last().id());
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").restored_from(), ToString(source));
  RunBeyond(source.number + 1);
  EXPECT_TRUE(cluster.checkpoints.contains(source)) << "it is one of the newest two";
  RunBeyond(ParseCheckpointId(Last().id())->number + 1);
  cluster.RunFor(absl::Seconds(1));
  EXPECT_FALSE(cluster.checkpoints.contains(source));
  EXPECT_EQ(cluster.checkpoints.size(), 2u);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
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

// ---- A shard cannot read its first values ----

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

// Its folder may be an older copy, which has the coordinator's number, too.
TEST_F(RollbackTest, OthersDoItForAShardThatCannotReadItsFirstValues) {
  Submit(Job("a"));
  RunBeyond(1);
  Replace("ps-0");
  cluster.shards["ps-0"].refuses = "no such file";
  ASSERT_TRUE(GoesBack(2)) << Reason();
  const JobReply job = cluster.Get("a");
  for (const View& view : job.views())
    EXPECT_EQ(view.primary(), cluster.shards["ps-1"].identity.id());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.Status("a").restarts(), 2u);
}

TEST_F(RollbackTest, WhereNoneCanItSaysWhichAndDoesNotTryForEver) {
  Submit(Job("a"));
  RunBeyond(1);
  KillShards();
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 1; }));
  cluster.shards.erase("ps-1");
  Replace("ps-0");
  cluster.shards["ps-0"].refuses = "no such file";
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 2; })) << Reason();
  cluster.RunFor(absl::Seconds(5));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("which too few shards can read: shard ps-0 cannot read it, "
                                  "although the coordinator can: no such file (has it another copy "
                                  "of "));
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("a", FAILED); }, absl::Minutes(5))) << Reason();
  EXPECT_EQ(cluster.Status("a").restarts(), 3u);
  EXPECT_THAT(Reason(), AllOf(HasSubstr("on ps-0: no such file; the job has gone "
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
    EXPECT_EQ(cluster.read.size(), damaged ? 2u : 1u)
        << "once for both, and once more after the folder was listed again";
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

TEST_F(RollbackTest, AManifestThatMakesNoSenseIsNotRead) {
  Submit(Job("a"));
  RunBeyond(1);
  for (auto& [id, manifest] : cluster.checkpoints) manifest.set_step(400);
  Replace("ps-0");
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(Reason(), HasSubstr("it is of step 400 of a job of 400 steps"));
}

// ---- Attempts that are under way ----

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

}  // namespace
}  // namespace starling::coordinator
