// Workers that have no memory for a job.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::HasSubstr;

class NoRoomTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    cluster.train_samples = 4000;
    cluster.AddShard("ps-0");
  }
  void AddTiny(const std::string& name) {
    cluster.AddWorker(name);
    cluster.workers[name].no_room = "worker " + name + ": the job needs 3 GiB";
  }
  uint64_t JobOf(const std::string& worker) {
    return cluster.workers[worker].orders.run().job_uid();
  }
  // How often the job's log says it.
  int Said(const std::string& job, const std::string& what) {
    const std::string log = cluster.JobLog(job);
    int times = 0;
    for (size_t at = log.find(what); at != std::string::npos; at = log.find(what, at + 1)) ++times;
    return times;
  }
};

TEST_F(NoRoomTest, ARunningJobGoesOnWithoutAWorkerThatJoinsAndHasNone) {
  Workers(1);
  Submit(Ssp("a", 1, 3));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  EXPECT_EQ(cluster.Status("a").reason(), "");
  AddTiny("worker-1");
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  EXPECT_EQ(cluster.Status("a").reason(),
            "goes on without worker-1, which has no memory for it: worker worker-1: the job needs "
            "3 GiB");
  EXPECT_EQ(JobOf("worker-1"), 0u);
  EXPECT_EQ(Said("a", "goes on without worker-1: worker worker-1: the job needs 3 GiB\n"), 1);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.Status("a").reason(), "");
}

TEST_F(NoRoomTest, WhatFitsNowhereFailsBeforeItsFirstStepWithTheSizes) {
  AddTiny("worker-0");
  AddTiny("worker-1");
  AddTiny("worker-2");
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr(": the job needs 3 GiB"));
  EXPECT_EQ(cluster.Status("a").step(), 0u);
  // Each was asked once, except the last: the others' memory may have been in its way.
  EXPECT_EQ(Said("a", "goes on without"), 2) << cluster.JobLog("a");
  EXPECT_LE(Said("a", "tries again"), 1) << cluster.JobLog("a");
}

TEST_F(NoRoomTest, AnIdleWorkerTakesThePlace) {
  AddTiny("worker-0");
  cluster.AddWorker("worker-1");
  Submit(Ssp("a", 1, 1));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(Said("a", "goes on without worker-0"), 1);
}

TEST_F(NoRoomTest, TheLastOfThoseThatPreparedTogetherTriesAgainAlone) {
  AddTiny("worker-0");
  AddTiny("worker-1");
  Submit(Ssp("a", 2, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return Said("a", "tries again") > 0; }));
  // The other worker's memory was in the way.
  for (auto& [name, worker] : cluster.workers) worker.no_room.clear();
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(Said("a", "tries again, since others prepared the job at the same time, with worker-"),
            1);
}

TEST_F(NoRoomTest, AWorkerWithoutRoomServesOtherJobs) {
  Workers(1);
  AddTiny("worker-1");
  Submit(Ssp("a", 2, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  cluster.workers["worker-1"].no_room.clear();
  cluster.train_samples = 40;
  Submit(Ssp("b", 1, 1));
  ASSERT_TRUE(Ends("b", SUCCEEDED));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  EXPECT_GT(cluster.workers["worker-1"].items, 0u);
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").workers(), 1u) << "not the same incarnation again";
  cluster.Rejoin("worker-1");
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
  EXPECT_EQ(cluster.Status("a").reason(), "");
}

TEST_F(NoRoomTest, AJobThatWasServedWaitsForAWorkerWithRoom) {
  Workers(1);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  cluster.workers["worker-0"].alive = false;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 0; }));
  AddTiny("worker-1");
  AddTiny("worker-2");
  cluster.RunFor(absl::Minutes(1));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.JobLog("a");
  EXPECT_THAT(cluster.Status("a").reason(),
              HasSubstr("waits for a worker other than worker-1, worker-2, which have no memory"));
  EXPECT_LE(Said("a", "no memory") + Said("a", "the job needs"), 3) << "nobody is asked on and on";
  cluster.Rejoin("worker-0");
  ASSERT_TRUE(Ends("a", SUCCEEDED));
}

// Two on one GPU: the one that is set aside finds memory when the other is gone.
TEST_F(NoRoomTest, WhenAnotherOneIsGoneWhoWasSetAsideIsAskedAgain) {
  Workers(1);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  AddTiny("worker-1");
  cluster.RunFor(absl::Seconds(2));
  ASSERT_THAT(cluster.Status("a").reason(), HasSubstr("goes on without worker-1"));
  cluster.workers["worker-1"].no_room.clear();
  cluster.workers["worker-0"].alive = false;
  ASSERT_TRUE(Ends("a", SUCCEEDED)) << cluster.JobLog("a");
  EXPECT_GT(cluster.workers["worker-1"].items, 0u);
}

// Two on one GPU, with a job each: when one job is over, its memory may be what the other lacked.
TEST_F(NoRoomTest, WhenAnotherJobIsOverWhoWasSetAsideIsAskedAgain) {
  Workers(1);
  Submit(Ssp("a", 1, 3));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  cluster.train_samples = 400;
  Submit(Ssp("b", 1, 1));
  cluster.AddWorker("worker-1");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("b").step() >= 3; }));
  AddTiny("worker-2");
  ASSERT_TRUE(cluster.RunUntil([&] { return Said("a", "goes on without worker-2") > 0; }));
  cluster.workers["worker-2"].no_room.clear();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  ASSERT_TRUE(Ends("b", SUCCEEDED));
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 3; }))
      << cluster.JobLog("a");
}

// No worker is left that might serve a job that was never served: it fails with that reason,
// although the last worker did not refuse.
TEST_F(NoRoomTest, AJobWhoseLastCandidateIsGoneBeforeItServedFails) {
  AddTiny("worker-0");
  cluster.AddWorker("worker-1");
  cluster.workers["worker-1"].prepares = false;
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return Said("a", "goes on without worker-0") == 1; }));
  cluster.workers["worker-1"].alive = false;
  ASSERT_TRUE(Ends("a", FAILED)) << cluster.JobLog("a");
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("worker worker-0: the job needs 3 GiB"));
}

// Another job is not disturbed for a retry, which waits until that job is over.
TEST_F(NoRoomTest, ATryTakesNobodyFromAnotherJob) {
  Workers(2);
  Submit(Ssp("a", 2, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  cluster.workers["worker-1"].alive = false;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 1; }));
  AddTiny("worker-2");
  ASSERT_TRUE(cluster.RunUntil([&] { return Said("a", "goes on without worker-2") == 1; }));
  cluster.AddWorker("worker-3");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
  cluster.workers["worker-2"].no_room.clear();
  cluster.train_samples = 400;
  Submit(Ssp("b", 1, 1));  // worker-2 serves it
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("b").step() >= 3; }));
  cluster.workers["worker-3"].alive = false;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 1; }));
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(Said("b", "gives worker-2 to job a"), 0) << cluster.JobLog("b");
  EXPECT_EQ(cluster.Status("b").workers(), 1u);
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  ASSERT_TRUE(Ends("b", SUCCEEDED));
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
}

// It is cut at the end of a character: the record must be readable again.
TEST_F(NoRoomTest, ALongMessageIsCutAndStored) {
  AddTiny("worker-0");
  std::string& why = cluster.workers["worker-0"].no_room;
  why.assign(4095, 'x');
  why += "\xe2\x82\xac of memory";
  Submit(Ssp("a", 1, 1));
  ASSERT_TRUE(Ends("a", FAILED));
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").reason(), std::string(4095, 'x'));
}

TEST_F(NoRoomTest, AfterARestartItIsTriedAndSetAsideAgain) {
  Workers(1);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  AddTiny("worker-1");
  // At each stage: ordered, refused, set aside.
  for (int rounds = 0; rounds < 8; ++rounds) {
    for (int i = 0; i < rounds; ++i) cluster.Round();
    cluster.StartCoordinator();
    cluster.RunFor(absl::Seconds(3));
    ASSERT_TRUE(cluster.IsIn("a", RUNNING)) << rounds;
    EXPECT_EQ(cluster.Status("a").workers(), 1u);
    EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("goes on without worker-1"));
    EXPECT_EQ(JobOf("worker-1"), 0u);
  }
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

// Its orders to let the job go were not stored: after a restart the coordinator takes it for a
// member.
TEST_F(NoRoomTest, AMemberThatHasNoneAnyMoreLeavesTheRoster) {
  Workers(2);
  Submit(Ssp("a", 2, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  cluster.workers["worker-1"].no_room = "worker worker-1: the job needs 3 GiB";
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-1 left: it has no memory for the job"));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(NoRoomTest, WhatIsSaidOfAnotherEraOrJobChangesNothing) {
  Workers(2);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
  Fault& fault = cluster.workers["worker-1"].fault;
  fault.set_kind(Fault::NO_ROOM);
  for (const auto& [uid, era] : {std::pair(1, 1), std::pair(2, 0)}) {
    fault.mutable_run()->set_job_uid(uid);
    fault.mutable_run()->set_era(era);
    cluster.RunFor(absl::Seconds(1));
    EXPECT_EQ(cluster.Status("a").workers(), 2u);
  }
}

TEST_F(NoRoomTest, AWaitingJobTakesNobodyWhomItCannotUse) {
  AddTiny("worker-0");
  cluster.AddWorker("worker-1");
  Submit(Ssp("a", 2, 2));  // worker-1 alone serves it
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  cluster.workers["worker-0"].no_room.clear();
  cluster.AddWorker("worker-2");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
  Submit(Ssp("b", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("b").step() >= 3; }));
  cluster.workers["worker-2"].alive = false;
  cluster.RunFor(absl::Seconds(20));
  EXPECT_EQ(Said("b", "gives worker-0 to job a"), 0) << cluster.JobLog("b");
  EXPECT_EQ(cluster.Status("b").workers(), 1u);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ASSERT_TRUE(Ends("b", SUCCEEDED));
}

}  // namespace
}  // namespace starling::coordinator
