// Checkpoints that are deleted, and the folder that they are in.
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/checkpoint_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

}  // namespace
}  // namespace starling::coordinator
