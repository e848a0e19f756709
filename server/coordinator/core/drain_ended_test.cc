// Shards that are asked to stop, and values of jobs that are over.
#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DrainEndedTest : public CoordinatorTest {
 protected:
  DrainEndedTest() { Workers(1); }

  void Shards(int count) {
    for (int i = 0; i < count; ++i) cluster.AddShard(absl::StrCat("ps-", i));
    cluster.RunFor(absl::Milliseconds(200));
  }
  void Train(const std::string& name, Durability durability) {
    JobSpec spec = Once(MiniCluster::Spec(name, Policy::SSP, 1, 1));
    // So that all second copies are there before the end.
    spec.mutable_stop()->set_epochs(20);
    spec.set_durability(durability);
    Submit(spec);
    ASSERT_TRUE(Ends(name, SUCCEEDED));
    cluster.RunFor(absl::Seconds(1));
  }
  // Begins a job that goes on for long, and waits until its copies are there.
  void Run(const std::string& name, Durability durability) {
    cluster.train_samples = 400000;
    JobSpec spec = Once(MiniCluster::Spec(name, Policy::SSP, 1, 1));
    spec.set_durability(durability);
    Submit(spec);
    ASSERT_TRUE(cluster.RunUntil([&] {
      const JobStatus status = cluster.Status(name);
      return status.state() == RUNNING &&
             (durability == DURABILITY_NONE || status.partitions_whole() == status.partitions());
    }));
  }
  // Whether copies of partitions come to be whole.
  void Copies(bool copies) {
    for (auto& [name, shard] : cluster.shards) shard.copies = copies;
  }
  uint32_t Id(const std::string& shard) { return cluster.shards[shard].identity.id(); }
  int Count(const std::string& job, const std::function<bool(const View&)>& is) {
    const JobReply reply = cluster.Get(job);
    return static_cast<int>(std::count_if(reply.views().begin(), reply.views().end(), is));
  }
  int Led(const std::string& job, const std::string& shard) {
    return Count(job, [&](const View& view) { return view.primary() == Id(shard); });
  }
  int Backed(const std::string& job, const std::string& shard) {
    return Count(job, [&](const View& view) { return view.backup() == Id(shard); });
  }
  int Learning(const std::string& job) {
    return Count(job, [](const View& view) { return view.learning(); });
  }
  int Partitions(const std::string& job) { return cluster.Get(job).views_size(); }
  // That it can be read.
  bool HasValues(const std::string& job) {
    const JobReply reply = cluster.Get(job);
    return reply.values_size() == reply.views_size() &&
           std::all_of(reply.values().begin(), reply.values().end(), [](const auto& values) {
             return values.gone().empty() && !values.unknown();
           });
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
  const DrainOrders& Drain(const std::string& shard) { return cluster.shards[shard].drain; }
  const std::string& Text(const std::string& shard) { return Drain(shard).text(); }
};

TEST_F(DrainEndedTest, AfterEachShardInTurnAllValuesAreThere) {
  Shards(2);
  Train("twice", DURABILITY_REPLICATED);
  Train("once", DURABILITY_NONE);
  ASSERT_GT(Led("once", "ps-0"), 0);
  ASSERT_GT(Led("once", "ps-1"), 0);
  for (const char* shard : {"ps-0", "ps-1", "ps-0", "ps-1"}) {
    ASSERT_TRUE(MayLeave(shard)) << Text(shard);
    EXPECT_FALSE(Drain(shard).loses());
    EXPECT_EQ(Led("twice", shard) + Led("once", shard), 0);
    Leave(shard);
    EXPECT_TRUE(HasValues("twice")) << shard;
    EXPECT_TRUE(HasValues("once")) << shard;
    cluster.AddShard(shard);
    cluster.RunFor(absl::Seconds(1));
  }
  EXPECT_THAT(cluster.JobLog("once"),
              HasSubstr("shard ps-0 was asked to stop: others get the values of partition"));
}

// One copy elsewhere is enough. It is used at once, and what the shard has is kept beside it.
TEST_F(DrainEndedTest, WhereTwoCopiesAreThereNoOtherOneIsMade) {
  Shards(3);
  Train("twice", DURABILITY_REPLICATED);
  const int led = Led("twice", "ps-0"), backed = Backed("twice", "ps-0");
  ASSERT_GT(led, 0);
  ASSERT_GT(backed, 0);
  Copies(false);
  ASSERT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  EXPECT_EQ(Text("ps-0"), "nothing counts on this shard");
  EXPECT_FALSE(Drain("ps-0").loses());
  EXPECT_EQ(Led("twice", "ps-0"), 0);
  EXPECT_EQ(Backed("twice", "ps-0"), led + backed);
  EXPECT_EQ(Learning("twice"), 0);
}

// As is each of two that are asked to stop at the same time, where a third one stays.
TEST_F(DrainEndedTest, ACopyOnAShardThatDrainsTooIsNotEnough) {
  Shards(3);
  Train("twice", DURABILITY_REPLICATED);
  cluster.shards["ps-0"].draining = cluster.shards["ps-1"].draining = true;
  for (const char* shard : {"ps-0", "ps-1"}) {
    ASSERT_TRUE(MayLeave(shard)) << Text(shard);
    Leave(shard);
  }
  EXPECT_TRUE(HasValues("twice"));
  EXPECT_EQ(Led("twice", "ps-2"), Partitions("twice"));
}

TEST_F(DrainEndedTest, WithoutRoomItWaitsAndSaysWhatFor) {
  Shards(2);
  Train("once", DURABILITY_NONE);
  const int led = Led("once", "ps-1");
  cluster.shards["ps-1"].memory_room = 0;
  cluster.RunFor(absl::Milliseconds(200));
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(5)));
  EXPECT_THAT(Text("ps-0"),
              AllOf(HasSubstr("values of job once, which ended (0.0 MiB), have no whole copy "
                              "elsewhere yet"),
                    HasSubstr("no other shard has more than 0.0 MiB")));
  EXPECT_EQ(Led("once", "ps-1"), led);
  cluster.shards["ps-1"].memory_room.reset();
  EXPECT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  EXPECT_EQ(Led("once", "ps-1"), Partitions("once"));
}

TEST_F(DrainEndedTest, WithNowhereToGoItSaysThatTheyAreLost) {
  Shards(2);
  Train("a", DURABILITY_NONE);
  Train("b", DURABILITY_REPLICATED);
  for (auto& [name, shard] : cluster.shards) shard.draining = true;
  for (const char* name : {"ps-0", "ps-1"}) {
    ASSERT_TRUE(MayLeave(name, absl::Milliseconds(500)));
    EXPECT_TRUE(Drain(name).loses());
    EXPECT_THAT(Text(name), HasSubstr("values of 2 jobs that ended, as of job a (0.0 MiB), have no "
                                      "other copy, and are lost with this shard"));
  }
}

// What a job was run for is in its file, and nothing comes of one that was cancelled.
TEST_F(DrainEndedTest, OnlyResultsThatAreInNoFileAreALoss) {
  cluster.AddShard("ps-0");
  cluster.RunFor(absl::Milliseconds(200));
  JobSpec spec = Once(MiniCluster::Spec("written", Policy::SSP, 1, 1));
  spec.set_output("a.safetensors");
  Submit(spec);
  ASSERT_TRUE(cluster.RunUntil([&] { return !cluster.outputs.empty(); }));
  cluster.Step(event::OutputWritten{cluster.outputs[0].status().uid(), 2480});
  ASSERT_TRUE(Ends("written", SUCCEEDED));
  Run("cancelled", DURABILITY_NONE);
  ASSERT_TRUE(AskJob<event::CancelJob>("cancelled").ok());
  ASSERT_TRUE(Ends("cancelled", CANCELLED));
  cluster.RunFor(absl::Seconds(1));
  ASSERT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  EXPECT_FALSE(Drain("ps-0").loses()) << Text("ps-0");
  EXPECT_THAT(Text("ps-0"), HasSubstr("values of 2 jobs that ended, as of job written"));
}

// Its values cannot be read any more, wherever the rest of them is.
TEST_F(DrainEndedTest, AJobThatHasLostValuesIsNotWaitedFor) {
  Shards(3);
  Train("once", DURABILITY_NONE);
  ASSERT_GT(Led("once", "ps-1"), 0);
  cluster.shards["ps-1"].alive = false;
  cluster.RunFor(absl::Seconds(7));
  ASSERT_FALSE(HasValues("once"));
  ASSERT_GT(Led("once", "ps-0"), 0);
  ASSERT_TRUE(MayLeave("ps-0", absl::Seconds(2))) << Text("ps-0");
  EXPECT_EQ(Learning("once"), 0);
}

TEST_F(DrainEndedTest, JobsThatRunMoveBesideThem) {
  Shards(2);
  Train("ended", DURABILITY_NONE);
  Run("runs", DURABILITY_NONE);
  Copies(false);
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(5)));
  EXPECT_GT(Learning("runs"), 0);
  EXPECT_GT(Learning("ended"), 0);
  EXPECT_THAT(Text("ps-0"), AllOf(HasSubstr("of job runs"), HasSubstr("values of job ended")));
  Copies(true);
  ASSERT_TRUE(MayLeave("ps-0", absl::Seconds(20))) << Text("ps-0");
  Leave("ps-0");
  EXPECT_TRUE(HasValues("ended"));
  EXPECT_TRUE(cluster.IsIn("runs", RUNNING));
}

TEST_F(DrainEndedTest, ItKeepsASecondCopyUntilItLeaves) {
  Shards(2);
  Train("twice", DURABILITY_REPLICATED);
  Run("runs", DURABILITY_NONE);
  Copies(false);
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(2)));
  EXPECT_EQ(Led("twice", "ps-1"), Partitions("twice"));
  EXPECT_EQ(Backed("twice", "ps-0"), Partitions("twice"));
  cluster.shards["ps-1"].alive = cluster.shards["ps-1"].beats = false;
  cluster.RunFor(absl::Seconds(7));
  EXPECT_EQ(Led("twice", "ps-0"), Partitions("twice"));
  EXPECT_TRUE(HasValues("twice"));
}

TEST_F(DrainEndedTest, AJobThatEndsMeanwhileIsHandedOverToo) {
  Shards(2);
  Run("a", DURABILITY_NONE);
  Copies(false);
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(2)));
  ASSERT_GT(Learning("a"), 0) << "it gets copies that are not whole";
  ASSERT_TRUE(AskJob<event::CancelJob>("a").ok());
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(2)));
  Copies(true);
  ASSERT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  Leave("ps-0");
  EXPECT_TRUE(HasValues("a"));
}

TEST_F(DrainEndedTest, SomeJobsAtATime) {
  constexpr int kJobs = 40;
  Shards(2);
  cluster.train_samples = 8;
  for (int i = 0; i < kJobs; ++i) {
    JobSpec spec = MiniCluster::Spec(absl::StrCat("job-", i), Policy::SSP, 1, 1);
    spec.set_durability(DURABILITY_NONE);
    Submit(spec);
    ASSERT_TRUE(Ends(absl::StrCat("job-", i), SUCCEEDED));
  }
  const auto learning = [&] {
    int jobs = 0;
    for (int i = 0; i < kJobs; ++i) jobs += Learning(absl::StrCat("job-", i)) > 0;
    return jobs;
  };
  Copies(false);
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(5)));
  EXPECT_GT(learning(), 1);
  EXPECT_LE(learning(), 32);
  EXPECT_THAT(Text("ps-0"), HasSubstr(absl::StrCat("values of ", kJobs, " jobs that ended")));
  Copies(true);
  ASSERT_TRUE(MayLeave("ps-0", absl::Seconds(30))) << Text("ps-0");
  Leave("ps-0");
  for (int i = 0; i < kJobs; ++i) EXPECT_TRUE(HasValues(absl::StrCat("job-", i))) << i;
}

TEST_F(DrainEndedTest, AShardThatFailsToCopyIsAskedAgainLater) {
  Shards(2);
  Train("once", DURABILITY_NONE);
  cluster.shards["ps-1"].refuses_ended = "no memory, today";
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(5)));
  EXPECT_EQ(Learning("once"), 0);
  EXPECT_THAT(Text("ps-0"),
              AllOf(HasSubstr("ps-1 is asked again in "), HasSubstr(" s: no memory, today")));
  EXPECT_THAT(cluster.JobLog("once"), HasSubstr("there is no copy on ps-1 of partition"));
  for (const auto& [uid, over] : cluster.shards["ps-1"].over)
    EXPECT_TRUE(over.copies.empty()) << "what it had of them takes memory";
  cluster.shards["ps-1"].refuses_ended.clear();
  ASSERT_TRUE(MayLeave("ps-0", absl::Seconds(40))) << Text("ps-0");
  EXPECT_EQ(Led("once", "ps-1"), Partitions("once"));
}

TEST_F(DrainEndedTest, ItGoesOnAfterACoordinatorsRestart) {
  Shards(2);
  Train("once", DURABILITY_NONE);
  Train("newest", DURABILITY_NONE);  // so that the other one is archived
  Copies(false);
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(2)));
  ASSERT_GT(Learning("once"), 0);
  cluster.StartCoordinator();
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(5)));
  Copies(true);
  ASSERT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  Leave("ps-0");
  for (const char* job : {"once", "newest"}) {
    EXPECT_TRUE(HasValues(job)) << job;
    EXPECT_EQ(Led(job, "ps-1"), Partitions(job)) << job;
  }
}

// It does not answer in the middle of a pass, and then it does: what the pass has not seen counts.
TEST_F(DrainEndedTest, ASilenceInTheMiddleEndsNoPass) {
  constexpr int kJobs = 40;
  Shards(2);
  cluster.train_samples = 8;
  for (int i = 0; i < kJobs; ++i) {
    JobSpec spec = MiniCluster::Spec(absl::StrCat("job-", i), Policy::SSP, 1, 1);
    spec.set_durability(DURABILITY_NONE);
    Submit(spec);
    ASSERT_TRUE(Ends(absl::StrCat("job-", i), SUCCEEDED));
  }
  Copies(false);
  ASSERT_FALSE(MayLeave("ps-0", absl::Seconds(2)));
  cluster.shards["ps-0"].alive = cluster.shards["ps-0"].beats = false;
  cluster.RunFor(absl::Milliseconds(2500));
  cluster.shards["ps-0"].alive = cluster.shards["ps-0"].beats = true;
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(5))) << Text("ps-0");
  Copies(true);
  ASSERT_TRUE(MayLeave("ps-0", absl::Seconds(30))) << Text("ps-0");
  Leave("ps-0");
  for (int i = 0; i < kJobs; ++i) EXPECT_TRUE(HasValues(absl::StrCat("job-", i))) << i;
}

TEST_F(DrainEndedTest, WithoutADrainNoCopyIsMade) {
  Shards(2);
  cluster.train_samples = 40;
  Copies(false);
  JobSpec spec = MiniCluster::Spec("a", Policy::SSP, 1, 1);
  spec.set_durability(DURABILITY_REPLICATED);
  Submit(spec);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(Learning("a"), 0) << "what was being copied at the end is dropped";
  Copies(true);
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(Backed("a", "ps-0") + Backed("a", "ps-1"), 0);
}

TEST_F(DrainEndedTest, WhereTheCopyIsLostAnotherOneIsMade) {
  Shards(3);
  Train("once", DURABILITY_NONE);
  Copies(false);
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(2)));
  const std::string with = Backed("once", "ps-1") > 0 ? "ps-1" : "ps-2";
  const std::string other = with == "ps-1" ? "ps-2" : "ps-1";
  ASSERT_GT(Backed("once", with), 0);
  cluster.shards[with].draining = true;
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(Backed("once", with), 0);
  cluster.shards[other].copies = true;
  ASSERT_TRUE(MayLeave("ps-0")) << Text("ps-0");
  ASSERT_TRUE(MayLeave(with)) << Text(with);
  EXPECT_EQ(Led("once", other), Partitions("once"));
  Leave("ps-0");
  Leave(with);
  EXPECT_TRUE(HasValues("once"));
}

TEST_F(DrainEndedTest, WhatAnotherReleaseLaidOutIsNamedAndNotWaitedFor) {
  Shards(2);
  Train("old", DURABILITY_NONE);
  ASSERT_GT(Led("old", "ps-0"), 0);
  StoredJob stored;
  ASSERT_TRUE(stored.ParseFromString(cluster.store[records::Job(1)]));
  stored.mutable_description()->set_layout_digest(stored.description().layout_digest() + 1);
  cluster.store[records::Job(1)] = stored.SerializeAsString();
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  ASSERT_TRUE(MayLeave("ps-0", absl::Seconds(5))) << Text("ps-0");
  EXPECT_TRUE(Drain("ps-0").loses());
  EXPECT_THAT(Text("ps-0"),
              HasSubstr("values of 1 job that ended cannot be copied between these releases"));
}

TEST_F(DrainEndedTest, AnOlderShardLeavesAsBefore) {
  Shards(2);
  Train("once", DURABILITY_NONE);
  cluster.shards["ps-0"].copies_ended = false;
  cluster.RunFor(absl::Seconds(1));
  ASSERT_TRUE(MayLeave("ps-0", absl::Seconds(5))) << Text("ps-0");
  EXPECT_TRUE(Drain("ps-0").loses());
  EXPECT_THAT(Text("ps-0"), HasSubstr("cannot be copied between these releases"));
}

// The coordinator that starts does not go on with a copy: the shard is told to drop what it has.
TEST_F(DrainEndedTest, WhatIsCopiedNoMoreIsDroppedAtTheShard) {
  Shards(3);
  Train("once", DURABILITY_NONE);
  Copies(false);
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(2)));
  ASSERT_GT(Learning("once"), 0);
  const auto held = [&](const std::string& shard) {
    const auto& over = cluster.shards[shard].over;
    return over.empty() ? 0 : over.begin()->second.copies.size();
  };
  ASSERT_GT(held("ps-1") + held("ps-2"), 0u);
  for (const char* other : {"ps-1", "ps-2"}) cluster.shards[other].copies_ended = false;
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(Learning("once"), 0);
  EXPECT_EQ(held("ps-1") + held("ps-2"), 0u);
}

TEST_F(DrainEndedTest, ADeletedJobIsNotWaitedFor) {
  Shards(2);
  Train("once", DURABILITY_NONE);
  Copies(false);
  EXPECT_FALSE(MayLeave("ps-0", absl::Seconds(2)));
  ASSERT_TRUE(AskJob<event::DeleteJob>("once").ok());
  EXPECT_TRUE(MayLeave("ps-0", absl::Seconds(2))) << Text("ps-0");
}

}  // namespace
}  // namespace starling::coordinator
