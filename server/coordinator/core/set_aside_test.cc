// Workers that cannot serve a job: it goes on without them, and fails only when none can serve it.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SetAsideTest : public CoordinatorTest {
 protected:
  explicit SetAsideTest(const CoordinatorOptions& options = {}) : CoordinatorTest(options) {}
  void SetUp() override {
    cluster.train_samples = 4000;
    cluster.AddShard("ps-0");
  }
  // Whatever job it is ordered to serve.
  void AddFaulty(const std::string& name, Fault::Kind kind, const std::string& why) {
    cluster.AddWorker(name);
    cluster.workers[name].cannot = kind;
    cluster.workers[name].why_not = why;
  }
  void Break(const std::string& name, Fault::Kind kind, const std::string& why) {
    cluster.workers[name].cannot = kind;
    cluster.workers[name].why_not = why;
  }
};

TEST_F(SetAsideTest, ANewcomerThatCannotServeHarmsNoJob) {
  cluster.train_samples = 800;
  Workers(2);
  Submit(Ssp("a", 1, 5));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  AddFaulty("worker-2", Fault::DATA, "worker worker-2: /data has no files");
  cluster.RunFor(absl::Seconds(1));
  AddFaulty("worker-3", Fault::MODEL, "worker worker-3: no such operator");
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").workers(), 2u);
  EXPECT_EQ(cluster.Status("a").reason(),
            "goes on without worker-2, worker-3, which cannot serve it; the last of them: worker "
            "worker-3: no such operator");
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr("goes on without worker-2: worker worker-2: /data has no files\n"));
  ExplainRequest request;
  request.set_name("a");
  const CallReply reply = cluster.Ask<event::Explain>(request);
  EXPECT_EQ(std::get<ExplainReply>(reply).findings(0).cause(), "set-aside");
  Submit(Ssp("b", 1, 1));  // takes one that can
  ASSERT_TRUE(Ends("b", SUCCEEDED));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(SetAsideTest, AMemberIsSetAsideAndItsWorkGoesToOthers) {
  for (const Fault::Kind kind :
       {Fault::DATA, Fault::MODEL, Fault::INTERNAL, Fault::OTHER_DATA, Fault::DAMAGED}) {
    MiniCluster other;
    other.train_samples = 400;
    other.test_samples = 400;
    other.AddShard("ps-0");
    other.AddWorker("worker-0");
    other.AddWorker("worker-1");
    other.Submit(Ssp("a", 2, 2));
    ASSERT_TRUE(other.RunUntil([&] { return other.Status("a").step() >= 20; }));
    other.workers["worker-1"].cannot = kind;
    other.workers["worker-1"].why_not = "worker worker-1: broken";
    other.Round();
    other.Round();
    EXPECT_EQ(other.Status("a").workers(), 1u);
    ASSERT_TRUE(other.RunUntil([&] { return other.IsIn("a", SUCCEEDED); })) << other.JobLog("a");
    EXPECT_THAT(other.JobLog("a"),
                AllOf(HasSubstr("goes on without worker-1: worker worker-1: broken\n"),
                      HasSubstr("worker-1 left: it was set aside; its ")));
    EXPECT_EQ(other.covered[1][1].size(), 100u);
    EXPECT_TRUE(other.Status("a").epochs_done(1).evaluated());
  }
}

TEST_F(SetAsideTest, WhatNobodyCanDoFailsWithAllReasons) {
  AddFaulty("worker-0", Fault::DATA, "worker worker-0: no data");
  AddFaulty("worker-1", Fault::INTERNAL, "worker worker-1: no luck");
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_EQ(cluster.Status("a").reason(),
            "no worker can serve the job: worker worker-0: no data; worker worker-1: no luck");
}

// A worker that another job has may come later, and does.
TEST_F(SetAsideTest, ABusyWorkerMayStillServe) {
  cluster.train_samples = 800;
  Workers(1);
  Submit(Ssp("a", 1, 1));
  AddFaulty("worker-1", Fault::DATA, "worker worker-1: no data");
  Submit(Ssp("b", 1, 1));
  cluster.RunFor(absl::Seconds(5));
  EXPECT_TRUE(cluster.IsIn("b", RUNNING)) << cluster.Status("b").reason();
  EXPECT_THAT(cluster.Status("b").reason(), HasSubstr("waits for a worker other than worker-1"));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_TRUE(Ends("b", SUCCEEDED));
}

TEST_F(SetAsideTest, AJobThatWasServedFailsWhenAllKnownWorkersAreSetAside) {
  Workers(2);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  Break("worker-0", Fault::DATA, "worker worker-0: the disk is gone");
  cluster.RunFor(absl::Seconds(1));
  ASSERT_TRUE(cluster.IsIn("a", RUNNING));
  Break("worker-1", Fault::DATA, "worker worker-1: so is this one");
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").state(), FAILED);
  EXPECT_THAT(cluster.Status("a").reason(),
              HasSubstr("worker-0: the disk is gone; worker worker-1"));
}

TEST_F(SetAsideTest, AJobThatWasServedWaitsForAWorkerThatIsGone) {
  Workers(2);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  cluster.workers["worker-0"].alive = false;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 1; }));
  Break("worker-1", Fault::DATA, "worker worker-1: no data");
  cluster.RunFor(absl::Minutes(4));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  cluster.Rejoin("worker-0");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 1; }));
  cluster.workers["worker-0"].alive = false;
  cluster.RunFor(absl::Minutes(4));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << "it waits anew";
  cluster.RunFor(absl::Minutes(2));
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
}

TEST_F(SetAsideTest, NobodySpeaksForAJobThatItDoesNotServe) {
  Workers(1);
  Submit(Ssp("a", 1, 1));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  cluster.AddWorker("worker-1");
  for (const Fault::Kind kind : {Fault::DATA, Fault::INTERNAL, Fault::NON_FINITE}) {
    Fault& fault = cluster.workers["worker-1"].fault;
    fault.set_kind(kind);
    fault.mutable_run()->set_job_uid(1);
    cluster.RunFor(absl::Seconds(1));
    EXPECT_TRUE(cluster.IsIn("a", RUNNING));
    EXPECT_EQ(cluster.Status("a").reason(), "");
  }
}

TEST_F(SetAsideTest, ANewIncarnationIsAskedAgain) {
  Workers(2);
  Submit(Ssp("a", 1, 2));
  Break("worker-1", Fault::OTHER_DATA, "worker worker-1: other data");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").reason() != ""; }));
  Break("worker-1", Fault::KIND_UNSPECIFIED, "");
  cluster.RunFor(absl::Minutes(1));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  cluster.Rejoin("worker-1");
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
}

// The same number of samples with other contents.
TEST_F(SetAsideTest, AWorkerWithOtherDataDoesNotJoin) {
  cluster.train_samples = 800;
  Workers(2);
  for (auto& [name, worker] : cluster.workers) worker.data_digest = 0xAB;
  Submit(Ssp("a", 1, 5));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
  cluster.AddWorker("worker-2");
  cluster.workers["worker-2"].data_digest = 0xCD;
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").workers(), 2u);
  EXPECT_THAT(
      cluster.Status("a").reason(),
      HasSubstr(
          "goes on without worker-2, which cannot serve it: worker-2 sees different data than "
          "worker-0, which inspected it when job a was submitted (digest cd, expected ab)"));
  EXPECT_EQ(cluster.workers["worker-2"].items, 0u);
  cluster.StartCoordinator();  // the digest is stored
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Status("a").workers(), 2u);
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("goes on without worker-2"));
  cluster.Rejoin("worker-2");
  cluster.workers["worker-2"].data_digest = 0xAB;
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 3; }));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
}

// It is idle, but what it sees may be wrong.
TEST_F(SetAsideTest, AWorkerThatWasSetAsideIsTheLastToLookAtAJob) {
  cluster.train_samples = 800;
  Workers(1);
  cluster.workers["worker-0"].data_digest = 0xAB;
  Submit(Ssp("a", 1, 50));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 1; }));
  cluster.AddWorker("worker-1");
  cluster.workers["worker-1"].data_digest = 0xCD;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").reason() != ""; }));
  Submit(Ssp("b", 1, 1));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ASSERT_TRUE(Ends("b", SUCCEEDED));
  EXPECT_EQ(cluster.workers["worker-1"].items, 0u);
}

// ---- Workers that report but make no progress ----

CoordinatorOptions Hurried() {
  CoordinatorOptions options;
  options.hang_rest = absl::Seconds(6);
  options.prepare_deadline = absl::Seconds(10);
  return options;
}

class HangTest : public SetAsideTest {
 protected:
  HangTest() : SetAsideTest(Hurried()) {}
  void SetUp() override {
    SetAsideTest::SetUp();
    cluster.train_samples = 400;
  }
  void Train(Policy::Kind policy) {
    Workers(2);
    JobSpec spec = MiniCluster::Spec("a", policy, 1, 2);
    spec.mutable_stop()->set_epochs(100'000);
    Submit(spec);
    ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
  }
  void Does(const std::string& name, Activity::Kind kind, double seconds, double unit_seconds) {
    Activity& activity = cluster.workers[name].activity;
    activity.set_kind(kind);
    activity.set_seconds(seconds);
    activity.set_unit_seconds(unit_seconds);
    cluster.RunFor(absl::Seconds(0.5));
  }
};

TEST_F(HangTest, ItIsSetAsideByNameAfterTheLongerOfBothTimes) {
  Train(Policy::SSP);
  Does("worker-1", Activity::COMPUTING, 29, 0.1);
  EXPECT_EQ(cluster.Status("a").workers(), 2u);
  Does("worker-1", Activity::COMPUTING, 299, 30);
  EXPECT_EQ(cluster.Status("a").workers(), 2u);
  cluster.workers["worker-1"].stubborn = cluster.workers["worker-1"].stuck = true;
  Does("worker-1", Activity::COMPUTING, 301, 30);
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  EXPECT_THAT(
      cluster.Status("a").reason(),
      HasSubstr(
          "goes on without worker-1, which cannot serve it: worker-1 reports, but its "
          "computation has made no progress for 301 s (a unit of this job takes 30 s there)"));
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-1 left: it was set aside; its "));
  // No job uses it until it makes progress.
  Submit(Ssp("b", 2, 2));
  EXPECT_THAT(cluster.Status("b").reason(), HasSubstr("the cluster has 1"));
}

TEST_F(HangTest, NobodyIsBlamedWhoWaitsOrPrepares) {
  Train(Policy::BSP);
  for (const Activity::Kind kind : {Activity::WAITING, Activity::PREPARING, Activity::IDLE}) {
    Does("worker-0", kind, 10'000, 0.1);
    EXPECT_EQ(cluster.Status("a").workers(), 2u);
  }
}

TEST_F(HangTest, ItIsAskedAgainALongerWhileLaterEachTime) {
  Train(Policy::SSP);
  for (const int seconds : {6, 12, 24}) {
    Does("worker-1", Activity::COMPUTING, 30, 0);
    ASSERT_EQ(cluster.Status("a").workers(), 1u);
    Does("worker-1", Activity::COMPUTING, 90, 0);
    cluster.RunFor(absl::Minutes(1));
    EXPECT_EQ(cluster.Status("a").workers(), 1u) << "it has not come back";
    Does("worker-1", Activity::IDLE, 0, 0);
    cluster.RunFor(absl::Seconds(seconds - 3));
    EXPECT_EQ(cluster.Status("a").workers(), 1u);
    cluster.RunFor(absl::Seconds(5));
    EXPECT_EQ(cluster.Status("a").workers(), 2u);
  }
}

// ---- Workers that do not reach a shard ----

class CutOffTest : public HangTest {
 protected:
  // Both are members, and the first one reaches the shard.
  void Begin(Policy::Kind policy) {
    Train(policy);
    Link("worker-0", "ps-0", true);
    Link("worker-1", "ps-0", false);
  }
  void Link(const std::string& worker, const std::string& shard, bool connected) {
    LinkStatus link;
    link.set_shard(cluster.shards[shard].identity.id());
    link.set_address(shard + ":1");
    link.set_connected(connected);
    if (!connected) link.set_last_error("no route to host");
    cluster.workers[worker].links = {link};
  }
  uint32_t Members() { return cluster.Status("a").workers(); }
};

TEST_F(CutOffTest, ItIsSetAsideByNameAndComesBackLikeOthers) {
  Begin(Policy::BSP);
  cluster.RunFor(absl::Seconds(29.5));
  EXPECT_EQ(Members(), 2u);
  cluster.RunFor(absl::Seconds(1.5));
  EXPECT_EQ(Members(), 1u);
  EXPECT_EQ(cluster.Status("a").reason(),
            "goes on without worker-1, which cannot serve it: worker-1 has had no stream to shard "
            "ps-0 at ps-0:1 for 30 s, though other workers have (its last error: no route to "
            "host): see the network between them");
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-1 left: it was set aside"));
  const uint64_t step = cluster.Status("a").step();
  cluster.RunFor(absl::Seconds(3));
  EXPECT_GT(cluster.Status("a").step(), step);
  Link("worker-1", "ps-0", true);
  EXPECT_TRUE(cluster.RunUntil([&] { return Members() == 2; }, absl::Seconds(7)));
  cluster.RunFor(absl::Minutes(1));
  EXPECT_EQ(Members(), 2u);
}

TEST_F(CutOffTest, AJobOfLongUnitsWaitsLonger) {
  Begin(Policy::SSP);
  cluster.workers["worker-1"].activity.set_unit_seconds(5);
  cluster.RunFor(absl::Seconds(49));
  EXPECT_EQ(Members(), 2u);
  cluster.RunFor(absl::Seconds(3));
  EXPECT_EQ(Members(), 1u);
}

// The shard's end, or everyone's network.
TEST_F(CutOffTest, NobodyIsBlamedWhereNobodyReachesTheShard) {
  Begin(Policy::SSP);
  Link("worker-0", "ps-0", false);
  cluster.RunFor(absl::Minutes(2));
  EXPECT_EQ(Members(), 2u);
}

// Each lacks another one: the job would not go on without either of them.
TEST_F(CutOffTest, NobodyIsBlamedByOneThatLacksALinkItself) {
  cluster.AddShard("ps-1");
  Begin(Policy::BSP);
  Link("worker-0", "ps-1", false);
  LinkStatus up = cluster.workers["worker-1"].links[0];
  up.set_connected(true);
  cluster.workers["worker-0"].links.push_back(up);
  cluster.RunFor(absl::Minutes(2));
  EXPECT_EQ(Members(), 2u);
}

TEST_F(CutOffTest, TheOnlyWorkerIsKept) {
  Workers(1);
  JobSpec spec = MiniCluster::Spec("a", Policy::BSP, 1, 2);
  spec.mutable_stop()->set_epochs(100'000);
  Submit(spec);
  Link("worker-0", "ps-0", false);
  ASSERT_TRUE(cluster.RunUntil([&] { return Members() == 1; }));
  cluster.RunFor(absl::Minutes(2));
  EXPECT_EQ(Members(), 1u);
  EXPECT_EQ(cluster.Status("a").reason(), "");
}

// Where it looks for the shard, that is no more.
TEST_F(CutOffTest, AnOldAddressDoesNotCount) {
  Begin(Policy::BSP);
  cluster.workers["worker-1"].links[0].set_address("ps-0:9");
  cluster.RunFor(absl::Minutes(2));
  EXPECT_EQ(Members(), 2u);
}

// Each time for less than that.
TEST_F(CutOffTest, ALinkThatComesBackCountsAnew) {
  Begin(Policy::SSP);
  for (int i = 0; i < 4; ++i) {
    cluster.RunFor(absl::Seconds(20));
    Link("worker-1", "ps-0", true);
    cluster.RunFor(absl::Seconds(0.1));
    Link("worker-1", "ps-0", false);
  }
  EXPECT_EQ(Members(), 2u);
}

// The other member's link breaks now and then: only the time in which it reaches the shard counts.
TEST_F(CutOffTest, AnotherOnesShortBreaksDoNotBeginItAnew) {
  Begin(Policy::BSP);
  for (int i = 0; i < 2; ++i) {
    cluster.RunFor(absl::Seconds(14));
    Link("worker-0", "ps-0", false);
    cluster.RunFor(absl::Seconds(1));
    Link("worker-0", "ps-0", true);
  }
  EXPECT_EQ(Members(), 2u);
  cluster.RunFor(absl::Seconds(4));
  EXPECT_EQ(Members(), 1u);
}

// Nobody says what was in between.
TEST_F(CutOffTest, TheCoordinatorsOwnPauseDoesNotCount) {
  Begin(Policy::SSP);
  cluster.RunFor(absl::Seconds(20));
  cluster.now += absl::Minutes(1);
  cluster.Tick();
  cluster.RunFor(absl::Seconds(8));
  EXPECT_EQ(Members(), 2u);
  cluster.RunFor(absl::Seconds(4));
  EXPECT_EQ(Members(), 1u);
}

TEST_F(HangTest, WhoDoesNotGetReadyIsSetAsideToo) {
  Workers(1);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 1; }));
  cluster.AddWorker("worker-1");
  cluster.workers["worker-1"].prepares = false;
  JobSpec spec = Ssp("b", 1, 2);
  spec.mutable_stop()->set_epochs(100'000);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  Submit(spec);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("b").workers() == 1; }));
  cluster.RunFor(absl::Seconds(12));
  EXPECT_THAT(cluster.Status("b").reason(), HasSubstr("worker-1 was not ready within 10s"));
}

}  // namespace
}  // namespace starling::coordinator
