// Shards that are asked to stop: what moves where, and when they may leave.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DrainTest : public CoordinatorTest {
 protected:
  DrainTest() {
    cluster.train_samples = 400000;
    Workers(1);
  }

  void Begin(int shards, Durability durability = DURABILITY_AUTO) {
    for (int i = 0; i < shards; ++i) cluster.AddShard(absl::StrCat("ps-", i));
    cluster.RunFor(absl::Milliseconds(200));
    JobSpec spec = Once(MiniCluster::Spec("a", Policy::SSP, 1, 1));
    spec.set_durability(durability);
    Submit(spec);
    ASSERT_TRUE(cluster.RunUntil([&] { return Settled(); }, absl::Seconds(10)));
  }
  // All partitions have as many copies as they are to have.
  bool Settled() {
    const JobReply reply = cluster.Get("a");
    if (reply.status().state() != RUNNING) return false;
    if (reply.spec().durability() == DURABILITY_NONE || cluster.shards.size() < 2) return true;
    return reply.status().partitions_whole() == reply.status().partitions();
  }
  uint32_t Id(const std::string& shard) { return cluster.shards[shard].identity.id(); }
  // How many partitions the shard leads, and how many it backs.
  std::pair<int, int> Copies(const std::string& shard) {
    std::pair<int, int> copies;
    const JobReply reply = cluster.Get("a");
    for (const View& view : reply.views()) {
      copies.first += view.primary() == Id(shard);
      copies.second += view.backup() == Id(shard);
    }
    return copies;
  }
  bool MayLeave(const std::string& shard, absl::Duration limit = absl::Seconds(10)) {
    cluster.shards[shard].draining = true;
    return cluster.RunUntil([&] { return cluster.shards[shard].drain.may_leave(); }, limit);
  }
  void Leave(const std::string& shard) {
    cluster.shards[shard].drained = true;
    cluster.RunFor(absl::Milliseconds(50));
    cluster.shards[shard].alive = false;
    cluster.RunFor(absl::Milliseconds(50));
  }
  const std::string& Text(const std::string& shard) { return cluster.shards[shard].drain.text(); }
  ShardStatus Status(const std::string& shard) {
    const auto reply =
        std::get<ListShardsReply>(cluster.Ask<event::ListShards>(ListShardsRequest()));
    for (const ShardStatus& status : reply.shards()) {
      if (status.name() == shard) return status;
    }
    return {};
  }
};

TEST_F(DrainTest, ItsPrimariesMoveAtOnceAndGetSecondCopiesElsewhere) {
  Begin(3);
  ASSERT_GT(Copies("ps-0").first, 0);
  cluster.shards["ps-1"].copies = cluster.shards["ps-2"].copies = false;  // new copies take long
  cluster.shards["ps-0"].draining = true;
  cluster.RunFor(absl::Milliseconds(100));
  EXPECT_EQ(Copies("ps-0").first, 0) << "at once";
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(5)));
  EXPECT_THAT(Text("ps-0"), HasSubstr(" no second copy elsewhere yet"));
  EXPECT_EQ(Status("ps-0").state(), "draining");
  EXPECT_EQ(Status("ps-0").drain(), Text("ps-0"));
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr("shard ps-0 was asked to stop: the other copy leads now of "));
  cluster.shards["ps-1"].copies = cluster.shards["ps-2"].copies = true;
  EXPECT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  EXPECT_EQ(Text("ps-0"), "nothing counts on this shard");
  EXPECT_TRUE(Settled());
  EXPECT_EQ(Copies("ps-0"), std::pair(0, 0));
  const uint64_t failovers = cluster.Status("a").failovers();
  Leave("ps-0");
  EXPECT_TRUE(Settled()) << "nothing is missed";
  EXPECT_EQ(cluster.Status("a").failovers(), failovers);
  EXPECT_EQ(Status("ps-0").state(), "left");
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
}

TEST_F(DrainTest, OfTwoShardsOneCopyElsewhereIsEnough) {
  Begin(2);
  ASSERT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  EXPECT_THAT(Text("ps-0"), HasSubstr(" one copy elsewhere, as no shard has room for another"));
  EXPECT_EQ(Copies("ps-0").first, 0);
  EXPECT_GT(Copies("ps-0").second, 0) << "the second copies stay as long as it does";
  EXPECT_FALSE(cluster.shards["ps-0"].drain.loses());
  Leave("ps-0");
  EXPECT_EQ(Copies("ps-0").second, 0) << "at once, not after its silence";
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  cluster.AddShard("ps-0");  // started again
  EXPECT_TRUE(cluster.RunUntil([&] { return Settled(); }, absl::Seconds(10)));
}

TEST_F(DrainTest, EachShardInTurn) {
  Begin(3);
  for (const char* shard : {"ps-0", "ps-1", "ps-2", "ps-0"}) {
    ASSERT_TRUE(MayLeave(shard)) << Text(shard);
    Leave(shard);
    EXPECT_TRUE(Settled());
    cluster.AddShard(shard);
    cluster.RunFor(absl::Seconds(1));
  }
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
}

TEST_F(DrainTest, WhatIsNotWholeElsewhereIsWaitedFor) {
  Begin(3);
  for (auto& [name, shard] : cluster.shards) shard.copies = false;
  cluster.shards["ps-1"].alive = false;  // what ps-0 led with it is alone now
  cluster.RunFor(absl::Seconds(7));
  ASSERT_GT(Copies("ps-0").first, 0);
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(5)));
  EXPECT_THAT(Text("ps-0"), AllOf(HasSubstr(" no whole copy elsewhere yet"), HasSubstr(" ps-2")));
  for (auto& [name, shard] : cluster.shards) shard.copies = true;
  EXPECT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  Leave("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
}

// A copy that is being made already needs no more room.
TEST_F(DrainTest, ACopyUnderWayIsWaitedForWhereThereIsNoRoomForAnother) {
  Begin(3);
  for (auto& [name, shard] : cluster.shards) shard.copies = false;
  cluster.shards["ps-0"].draining = true;
  cluster.RunFor(absl::Seconds(1));
  const JobReply reply = cluster.Get("a");
  ASSERT_TRUE(std::any_of(reply.views().begin(), reply.views().end(), [&](const View& view) {
    return view.learning() && view.backup() != Id("ps-0");
  }));
  for (const char* other : {"ps-1", "ps-2"}) cluster.shards[other].memory_room = 0;
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(5))) << Text("ps-0");
  EXPECT_THAT(Text("ps-0"), HasSubstr(" no second copy elsewhere yet"));
  for (auto& [name, shard] : cluster.shards) {
    shard.copies = true;
    shard.memory_room.reset();
  }
  EXPECT_TRUE(MayLeave("ps-0")) << Text("ps-0");
}

// It is replaced, so what is too large without it is not refused.
TEST_F(DrainTest, AJobThatNeedsItsMemoryWaits) {
  for (const char* name : {"ps-0", "ps-1"}) cluster.AddShard(name);
  cluster.shards["ps-1"].memory_room = 0;
  cluster.shards["ps-0"].draining = true;
  cluster.RunFor(absl::Milliseconds(200));
  JobSpec spec = MiniCluster::Spec("a", Policy::SSP, 1, 1);
  Submit(spec);
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
}

TEST_F(DrainTest, OneThatLeavesBeforeIsAsGoodAsDead) {
  Begin(2);
  for (auto& [name, shard] : cluster.shards) shard.copies = false;
  Leave("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
  EXPECT_EQ(Copies("ps-1"), std::pair(static_cast<int>(cluster.Status("a").partitions()), 0));
  Leave("ps-1");
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("it was asked to stop, and has left"));
}

TEST_F(DrainTest, AJobWithOneCopyMoves) {
  Begin(2, DURABILITY_NONE);
  ASSERT_GT(Copies("ps-0").first, 0);
  EXPECT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  EXPECT_EQ(Copies("ps-0"), std::pair(0, 0));
  EXPECT_EQ(Copies("ps-1").second, 0);
  EXPECT_EQ(cluster.Status("a").durability(), "none");
  EXPECT_EQ(cluster.Status("a").unreplicated_seconds(), 0);
  Leave("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
}

TEST_F(DrainTest, WithNowhereToGoItMayLeaveAtOnce) {
  Begin(2);
  cluster.shards["ps-1"].draining = true;
  EXPECT_TRUE(MayLeave("ps-0", absl::Milliseconds(500)));
  EXPECT_TRUE(MayLeave("ps-1", absl::Milliseconds(500)));
  EXPECT_THAT(Text("ps-0"), HasSubstr("each other shard has left or drains, too"));
}

TEST_F(DrainTest, ShardsThatLeaveTogetherSayThatSomethingIsLost) {
  Begin(2);
  for (auto& [name, shard] : cluster.shards) shard.draining = true;
  for (const char* name : {"ps-0", "ps-1"}) {
    ASSERT_TRUE(MayLeave(name, absl::Milliseconds(500)));
    EXPECT_TRUE(cluster.shards[name].drain.loses()) << Text(name);
    EXPECT_THAT(Text(name), HasSubstr("each other shard has left or drains, too"));
  }
  for (const char* name : {"ps-0", "ps-1"}) Leave(name);
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
}

TEST_F(DrainTest, ShardsThatLeaveTogetherWithoutAJobLoseNothing) {
  for (const char* name : {"ps-0", "ps-1"}) cluster.AddShard(name);
  cluster.RunFor(absl::Seconds(1));
  for (auto& [name, shard] : cluster.shards) shard.draining = true;
  for (const char* name : {"ps-0", "ps-1"}) {
    ASSERT_TRUE(MayLeave(name, absl::Milliseconds(500)));
    EXPECT_FALSE(cluster.shards[name].drain.loses()) << Text(name);
  }
}

TEST_F(DrainTest, AShardThatIsStartedAgainIsWaitedFor) {
  Begin(2);
  cluster.shards["ps-1"].alive = false;
  cluster.RunFor(absl::Seconds(7));
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(10)));
  EXPECT_THAT(Text("ps-0"), HasSubstr("no other shard is live"));
  cluster.AddShard("ps-1");
  EXPECT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  Leave("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
}

TEST_F(DrainTest, AnEmptyShardMayLeaveAtOnce) {
  for (const char* name : {"ps-0", "ps-1"}) cluster.AddShard(name);
  EXPECT_TRUE(MayLeave("ps-0", absl::Milliseconds(500)));
  EXPECT_EQ(Text("ps-0"), "nothing counts on this shard");
}

TEST_F(DrainTest, NothingNewComesToIt) {
  for (const char* name : {"ps-0", "ps-1", "ps-2"}) cluster.AddShard(name);
  cluster.RunFor(absl::Milliseconds(200));
  cluster.shards["ps-0"].draining = true;
  cluster.RunFor(absl::Milliseconds(200));
  JobSpec spec = MiniCluster::Spec("a", Policy::SSP, 1, 1);
  spec.set_durability(DURABILITY_AUTO);
  Submit(spec);
  ASSERT_TRUE(cluster.RunUntil([&] { return Settled(); }, absl::Seconds(10)));
  EXPECT_EQ(Copies("ps-0"), std::pair(0, 0));
}

TEST_F(DrainTest, WithoutRoomElsewhereItSaysWhatItWaitsFor) {
  Begin(2, DURABILITY_NONE);
  cluster.shards["ps-1"].memory_room = 0;
  cluster.RunFor(absl::Milliseconds(200));
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(5)));
  EXPECT_THAT(Text("ps-0"), HasSubstr("no other shard has more than 0.0 MiB"));
}

TEST_F(DrainTest, ItIsKnownToDrainAfterACoordinatorsRestart) {
  Begin(3);
  for (auto& [name, shard] : cluster.shards) shard.copies = false;
  cluster.shards["ps-0"].draining = true;
  cluster.RunFor(absl::Milliseconds(500));
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(Status("ps-0").state(), "draining");
  for (auto& [name, shard] : cluster.shards) shard.copies = true;
  EXPECT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  EXPECT_EQ(Copies("ps-0"), std::pair(0, 0));
}

}  // namespace
}  // namespace starling::coordinator
