// Two copies of each partition, and what becomes of them when shards die.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CopiesTest : public CoordinatorTest {
 protected:
  CopiesTest() {
    cluster.train_samples = 4000;
    for (const char* name : {"ps-0", "ps-1"}) cluster.AddShard(name);
    Workers(1);
  }

  static JobSpec Twice(const std::string& name) {
    JobSpec spec = MiniCluster::Spec(name, Policy::SSP, 1, 1);
    spec.set_durability(DURABILITY_REPLICATED);
    return spec;
  }
  bool Whole(const std::string& job) {
    const JobStatus status = cluster.Status(job);
    return status.partitions() > 0 && status.partitions_whole() == status.partitions();
  }
  bool BecomesWhole(const std::string& job) {
    return cluster.RunUntil([&] { return Whole(job); }, absl::Seconds(10));
  }
  void Begin() {
    Submit(Twice("a"));
    ASSERT_TRUE(BecomesWhole("a"));
  }
  std::vector<View> Views() {
    const JobReply reply = cluster.Get("a");
    return {reply.views().begin(), reply.views().end()};
  }
  void Kill(const std::string& shard) {
    cluster.shards[shard].alive = false;
    cluster.RunFor(absl::Seconds(7));
  }
};

TEST_F(CopiesTest, EachPartitionGetsABackupOnAnotherShard) {
  Begin();
  for (const View& view : Views()) {
    EXPECT_NE(view.primary(), view.backup());
    EXPECT_NE(view.backup(), 0u);
    EXPECT_EQ(view.number(), 2u);
    EXPECT_FALSE(view.learning());
  }
  EXPECT_EQ(cluster.Status("a").durability(), "replicated");
  EXPECT_EQ(cluster.Status("a").unreplicated_seconds(), 0);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(CopiesTest, ABackupIsToldWhoLeads) {
  Begin();
  int told = 0;
  for (const auto& [name, shard] : cluster.shards) {
    for (const auto& [uid, job] : shard.orders.jobs()) {
      for (const PartitionOrders& partition : job.partitions()) {
        const std::string other = name == "ps-0" ? "ps-1" : "ps-0";
        EXPECT_EQ(partition.primary_name(), partition.backup() ? other : "");
        ++told;
      }
    }
  }
  EXPECT_GT(told, 0);
}

TEST_F(CopiesTest, AShardsDeathEndsNothing) {
  Begin();
  const uint64_t step = cluster.Status("a").step();
  Kill("ps-0");
  const JobReply reply = cluster.Get("a");
  EXPECT_EQ(reply.status().state(), RUNNING) << reply.status().reason();
  EXPECT_GT(reply.status().step(), step);
  EXPECT_GT(reply.status().failovers(), 0u);
  EXPECT_GT(reply.status().unreplicated_seconds(), 0);
  for (const View& view : reply.views()) {
    EXPECT_EQ(view.primary(), cluster.shards["ps-1"].identity.id());
    EXPECT_EQ(view.primary_address(), "ps-1:1");
    EXPECT_EQ(view.backup(), 0u);
  }
  EXPECT_THAT(cluster.JobLog("a"),
              AllOf(HasSubstr("the other copy leads now of "), HasSubstr("one copy is left of ")));
  cluster.AddShard("ps-0");  // started again
  EXPECT_TRUE(BecomesWhole("a"));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(CopiesTest, OneShardAfterTheOtherMayDie) {
  Begin();
  for (const char* shard : {"ps-0", "ps-1", "ps-0"}) {
    Kill(shard);
    EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
    cluster.AddShard(shard);
    ASSERT_TRUE(BecomesWhole("a"));
  }
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(CopiesTest, ALearnerIsNoCopy) {
  cluster.shards["ps-0"].copies = cluster.shards["ps-1"].copies = false;
  Submit(Once(Twice("a")));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").partitions_whole(), 0u);
  Kill("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("lost partition"));
}

TEST_F(CopiesTest, WhatIsWholeIsDurable) {
  Begin();
  cluster.StartCoordinator();
  EXPECT_TRUE(Whole("a"));
  cluster.shards["ps-0"].alive = false;
  cluster.RunFor(absl::Seconds(15));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(CopiesTest, AShardThatCannotBeABackupIsNotAskedAgain) {
  cluster.shards["ps-1"].refuses_backups = "no memory";
  Submit(Twice("a"));
  cluster.RunFor(absl::Seconds(2));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  const JobReply reply = cluster.Get("a");
  for (const View& view : reply.views()) {
    const bool on_first = view.primary() == cluster.shards["ps-0"].identity.id();
    EXPECT_EQ(view.backup() == 0, on_first);
    EXPECT_EQ(view.number(), on_first ? 3u : 2u);
  }
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("has no copy on ps-1: no memory"));
  EXPECT_THAT(reply.status().copies_trouble(),
              AllOf(HasSubstr(" on ps-0 has no second copy: ps-1 is asked again in "),
                    HasSubstr(" s: no memory")));
  cluster.AddShard("ps-2");
  EXPECT_TRUE(BecomesWhole("a"));
}

TEST_F(CopiesTest, AShardThatCouldNotBeABackupIsAskedAgainEverLater) {
  cluster.train_samples = 400000;
  cluster.shards["ps-1"].refuses_backups = "no memory";
  Submit(Twice("a"));
  cluster.RunFor(absl::Seconds(35));
  const auto number = [&] {
    uint64_t most = 0;
    for (const View& view : Views()) most = std::max(most, view.number());
    return most;
  };
  EXPECT_EQ(number(), 5u) << "asked twice in 35 s";
  cluster.RunFor(absl::Seconds(50));
  EXPECT_EQ(number(), 5u);
  cluster.shards["ps-1"].refuses_backups = "";
  cluster.RunFor(absl::Seconds(15));
  EXPECT_TRUE(Whole("a")) << cluster.Status("a").copies_trouble();
  EXPECT_EQ(cluster.Status("a").copies_trouble(), "");
}

TEST_F(CopiesTest, AWholeBackupReplacesAPrimaryWithoutMemory) {
  Begin();
  const uint64_t step = cluster.Status("a").step();
  cluster.shards["ps-0"].no_memory = "no memory for 12 elements";
  cluster.RunFor(absl::Seconds(2));
  const JobReply reply = cluster.Get("a");
  EXPECT_EQ(reply.status().state(), RUNNING) << reply.status().reason();
  EXPECT_GT(reply.status().step(), step);
  EXPECT_GT(reply.status().failovers(), 0u);
  for (const View& view : reply.views()) {
    EXPECT_EQ(view.primary(), cluster.shards["ps-1"].identity.id());
    EXPECT_EQ(view.number(), view.backup() == 0 ? 3u : 2u) << "one change, and not again so soon";
  }
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr(" stopped on ps-0 (no memory for 12 elements) and "
                                             "continues on the other copy, on ps-1"));
  cluster.shards["ps-0"].no_memory = "";
  cluster.RunFor(absl::Seconds(31));
  EXPECT_TRUE(Whole("a"));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(CopiesTest, WithoutAWholeBackupAPrimaryWithoutMemoryEndsTheJob) {
  cluster.shards["ps-0"].copies = cluster.shards["ps-1"].copies = false;
  Submit(Twice("a"));
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-0"].no_memory = "no memory for 12 elements";
  EXPECT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("no memory for 12 elements"));
}

TEST_F(CopiesTest, AFaultOfTheDataEndsTheJobThoughThereAreTwoCopies) {
  Begin();
  cluster.shards["ps-0"].refuses = "element 3 is not finite";
  EXPECT_TRUE(Ends("a", FAILED));
  EXPECT_EQ(cluster.Status("a").failovers(), 0u);
}

TEST_F(CopiesTest, ALearnerThatGetsNothingGivesItsPlaceToAnotherShard) {
  cluster.workers["worker-0"].idle_hands = true;
  for (const char* shard : {"ps-0", "ps-1"}) cluster.shards[shard].cut = {"ps-0:1", "ps-1:1"};
  Submit(Twice("a"));
  cluster.RunFor(absl::Seconds(10));
  cluster.AddShard("ps-2");
  EXPECT_THAT(cluster.Status("a").copies_trouble(), HasSubstr(", without progress for "));
  // A copy that comes further, however slowly, is not given up.
  for (int i = 0; i < 5; ++i) {
    for (const char* shard : {"ps-0", "ps-1"}) ++cluster.shards[shard].frames;
    cluster.RunFor(absl::Seconds(40));
    EXPECT_EQ(cluster.Status("a").partitions_whole(), 0u);
  }
  cluster.RunFor(absl::Seconds(25));
  EXPECT_TRUE(Whole("a")) << cluster.Status("a").copies_trouble();
  for (const View& view : Views()) EXPECT_EQ(view.backup(), cluster.shards["ps-2"].identity.id());
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("frame 5 of its copy has not come from ps-"));
}

TEST_F(CopiesTest, ABackupThatTakesNothingIsNotWaitedForForEver) {
  cluster.train_samples = 400000;
  Begin();
  for (const char* shard : {"ps-0", "ps-1"}) cluster.shards[shard].cut = {"ps-0:1", "ps-1:1"};
  cluster.RunFor(absl::Seconds(25));
  EXPECT_TRUE(Whole("a"));
  cluster.RunFor(absl::Seconds(10));
  for (const View& view : Views()) EXPECT_EQ(view.backup(), 0u);
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("no record has come through from ps-"));
  for (const char* shard : {"ps-0", "ps-1"}) cluster.shards[shard].cut = {};
  cluster.RunFor(absl::Seconds(31));
  EXPECT_TRUE(Whole("a")) << cluster.Status("a").copies_trouble();
}

// What the coordinator did not hear while it was stopped is no reason to drop the copy that counts.
TEST_F(CopiesTest, APausedCoordinatorDropsNoCopy) {
  cluster.train_samples = 400000;
  Begin();
  for (const char* shard : {"ps-0", "ps-1"}) cluster.shards[shard].cut = {"ps-0:1", "ps-1:1"};
  cluster.RunFor(absl::Seconds(1));
  cluster.now += absl::Minutes(5);
  cluster.RunFor(absl::Seconds(20));
  EXPECT_TRUE(Whole("a"));
  for (const View& view : Views()) EXPECT_EQ(view.number(), 2u);
}

// The primary's silence is not its backup's: the one that dies is the primary.
TEST_F(CopiesTest, ABackupWhosePrimaryDiesIsNotDropped) {
  cluster.train_samples = 400000;
  Begin();
  for (const char* shard : {"ps-0", "ps-1"}) cluster.shards[shard].cut = {"ps-0:1", "ps-1:1"};
  cluster.RunFor(absl::Seconds(27));
  cluster.shards["ps-0"].alive = false;
  cluster.RunFor(absl::Seconds(8));
  const JobReply reply = cluster.Get("a");
  EXPECT_EQ(reply.status().state(), RUNNING) << reply.status().reason();
  EXPECT_GT(reply.status().failovers(), 0u);
}

// Neither copy is trained on, and what the primary has can be read.
TEST_F(CopiesTest, AJobWhoseCopiesDifferEnds) {
  cluster.train_samples = 400000;
  Begin();
  cluster.shards["ps-1"].refuses_backups = "after the update of record 7";
  cluster.shards["ps-1"].differs = true;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.IsIn("a", FAILED); }, absl::Seconds(5)));
  EXPECT_EQ(cluster.Status("a").reason(),
            "after the update of record 7 (primary: ps-0, backup: ps-1)");
  cluster.RunFor(absl::Seconds(2));
  const JobReply reply = cluster.Get("a");
  EXPECT_GT(reply.values_size(), 0);
  for (const PartitionValues& values : reply.values()) EXPECT_EQ(values.gone(), "");
}

TEST_F(CopiesTest, AnEndedJobDoesWithoutABackupThatDoesNotAnswer) {
  Begin();
  for (const char* shard : {"ps-0", "ps-1"}) cluster.shards[shard].cut = {"ps-0:1", "ps-1:1"};
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  cluster.RunFor(absl::Seconds(50));
  EXPECT_TRUE(cluster.Get("a").values(0).unknown());
  cluster.RunFor(absl::Seconds(15));
  const JobReply reply = cluster.Get("a");
  for (const PartitionValues& values : reply.values()) {
    EXPECT_FALSE(values.unknown());
    EXPECT_EQ(values.gone(), "");
  }
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr(": what came before the job's end has not taken effect on both for 1m"));
}

TEST_F(CopiesTest, ExplainNamesABackupThatDoesNotAnswerAndPartitionsWithoutOne) {
  const auto causes = [&] {
    ExplainRequest request;
    request.set_name("a");
    const ExplainReply reply = std::get<ExplainReply>(cluster.Ask<event::Explain>(request));
    std::string text;
    for (const Finding& finding : reply.findings())
      absl::StrAppend(&text, finding.cause(), ": ", finding.text(), "\n");
    return text;
  };
  cluster.train_samples = 400000;
  Begin();
  EXPECT_THAT(causes(), Not(HasSubstr("backup")));
  EXPECT_LT(cluster.Status("a").backup_silent_seconds(), 1);
  cluster.shards["ps-0"].cut = {"ps-1:1"};
  cluster.RunFor(absl::Seconds(5));
  EXPECT_GT(cluster.Status("a").backup_silent_seconds(), 3);
  EXPECT_THAT(causes(), HasSubstr("on shard ps-0 waits for its copy on shard ps-1 (ps-1:1), which "
                                  "lacks 7 records and has taken none for "));
  Kill("ps-1");
  EXPECT_THAT(causes(), Not(HasSubstr("not-replicated")));
  EXPECT_EQ(cluster.Status("a").backup_silent_seconds(), 0) << "there is none any more";
  cluster.RunFor(absl::Seconds(60));
  EXPECT_THAT(causes(), AllOf(HasSubstr("not-replicated: for "), HasSubstr(" one now: ")));
}

TEST_F(CopiesTest, BspNeedsMemoryForBothCopies) {
  cluster.train_samples = 400000;
  Begin();
  uint64_t leads = 0;
  for (const View& view : Views()) leads += view.primary() == cluster.shards["ps-0"].identity.id();
  cluster.bsp_bytes_more = 1000;
  cluster.memory_room = 1000 * leads;  // for the primaries alone
  cluster.RunFor(absl::Seconds(1));
  SetPolicyRequest request;
  request.set_name("a");
  request.mutable_policy()->set_kind(Policy::BSP);
  const CallReply reply = cluster.Ask<event::SetPolicy>(request);
  ASSERT_TRUE(std::holds_alternative<absl::Status>(reply));
  EXPECT_THAT(std::string(std::get<absl::Status>(reply).message()), HasSubstr("would need "));
  cluster.memory_room = 2000 * Views().size();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(std::holds_alternative<SetPolicyReply>(cluster.Ask<event::SetPolicy>(request)));
}

TEST_F(CopiesTest, WithOneShardAJobThatIsToBeReplicatedWaits) {
  cluster.shards["ps-1"].alive = false;
  cluster.RunFor(absl::Seconds(7));
  Submit(Twice("a"));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("needs two shards (durability: replicated)"));
  cluster.AddShard("ps-1");
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(CopiesTest, WithoutRoomForBothCopiesASubmissionIsRefusedWithTheWayOut) {
  JobSpec once = Twice("a");
  once.set_durability(DURABILITY_NONE);
  // The least room in which one copy fits.
  uint64_t room = 256;
  absl::Status fits = absl::UnknownError("");
  while (!fits.ok() && room < uint64_t{1} << 40) {
    room = room + room / 4;
    cluster.memory_room = room;
    cluster.RunFor(absl::Milliseconds(300));
    const CallReply reply = cluster.Submit(once, 0, /*dry_run=*/true);
    fits = std::holds_alternative<absl::Status>(reply) ? std::get<absl::Status>(reply)
                                                       : absl::OkStatus();
  }
  ASSERT_TRUE(fits.ok()) << fits;
  EXPECT_THAT(std::string(SubmitError(Twice("a")).message()),
              AllOf(HasSubstr("with two copies each on different shards"),
                    HasSubstr("or keep one copy (durability: none)")));
  cluster.memory_room = 2 * room + room / 4;
  cluster.RunFor(absl::Milliseconds(300));
  Submit(Twice("a"));
  EXPECT_TRUE(BecomesWhole("a"));
}

TEST_F(CopiesTest, OneCopyIsLostWithItsShard) {
  JobSpec spec = Once(Twice("a"));
  spec.set_durability(DURABILITY_NONE);
  Submit(spec);
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Status("a").durability(), "none");
  for (const View& view : Views()) EXPECT_EQ(view.backup(), 0u);
  Kill("ps-0");
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
}

TEST_F(CopiesTest, TheValuesOfAJobThatIsOverOutliveAShard) {
  cluster.train_samples = 40;
  Submit(Twice("a"));
  ASSERT_TRUE(BecomesWhole("a"));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  cluster.RunFor(absl::Seconds(1));
  Kill("ps-0");
  const JobReply reply = cluster.Get("a");
  EXPECT_EQ(reply.status().reason(), "");
  for (const PartitionValues& values : reply.values()) {
    EXPECT_EQ(values.gone(), "");
    EXPECT_FALSE(values.unknown());
  }
  for (const View& view : reply.views()) EXPECT_EQ(view.primary_address(), "ps-1:1");
  // What a lost shard alone had: doctor tells it.
  const auto alone = [&](const std::string& name) {
    const auto reply = std::get<ListShardsReply>(cluster.Ask<event::ListShards>());
    for (const ShardStatus& shard : reply.shards()) {
      if (shard.name() == name && shard.state() == "lost")
        return static_cast<int>(shard.partitions());
    }
    return -1;
  };
  EXPECT_EQ(alone("ps-0"), 0);
  Kill("ps-1");
  EXPECT_EQ(alone("ps-1"), reply.views_size());
  cluster.StartCoordinator();
  EXPECT_EQ(alone("ps-0"), 0);
  EXPECT_EQ(alone("ps-1"), reply.views_size());
  EXPECT_THAT(cluster.Get("a").values(0).gone(), HasSubstr("lost with shard ps-1"));
  EXPECT_THAT(cluster.Status("a").reason(), Not(HasSubstr("continue")));
}

}  // namespace
}  // namespace starling::coordinator
