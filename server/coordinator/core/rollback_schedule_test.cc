// A job that goes back beside others: whose turn it is, who keeps workers, and what waits for what.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/rollback_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::HasSubstr;

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

// It runs on with one worker when it loses the other, and so it goes on after it went back.
TEST_F(RollbackTest, GoesOnWithFewerWorkersThanItBeganWith) {
  JobSpec spec = Job("a");
  spec.set_workers_min(2);
  spec.set_workers_max(2);
  cluster.AddWorker("worker-1");
  Submit(spec);
  RunBeyond(1);
  cluster.workers["worker-1"].alive = false;
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").workers() == 1; }));
  RunBeyond(2);
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("starts on 2 shards with 1 worker\n"));
  Submit(Job("b", /*every_steps=*/0));
  cluster.AddWorker("worker-2");
  EXPECT_TRUE(Comes([&] { return cluster.Status("a").workers() == 2; }));
  EXPECT_TRUE(cluster.IsIn("b", PENDING)) << "it has fewer than workers.min, and comes first";
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, WithoutAnyWorkerItSaysSo) {
  JobSpec spec = Job("a");
  spec.set_workers_min(2);
  spec.set_workers_max(2);
  cluster.AddWorker("worker-1");
  Submit(spec);
  RunBeyond(1);
  for (auto& [name, worker] : cluster.workers) worker.alive = false;
  cluster.RunFor(absl::Seconds(6));
  Replace("ps-0");
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 1; })) << Reason();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(Reason(), HasSubstr("needs 1 worker to go on; the cluster has 0: start 1 more"));
}

// It cannot go on for long, and does not keep its workers idle.
TEST_F(RollbackTest, OthersDoNotWaitForAJobThatLacksShards) {
  Submit(Job("a"));
  RunBeyond(1);
  Submit(Job("b", /*every_steps=*/0));
  cluster.shards["ps-1"].checkpoint_error = "no such folder";
  cluster.RunFor(absl::Seconds(1));
  Replace("ps-0");
  cluster.shards["ps-0"].checkpoint_error = "no such folder";
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 1; }));
  cluster.RunFor(absl::Seconds(20));
  EXPECT_TRUE(cluster.IsIn("b", PENDING));
  EXPECT_THAT(cluster.Status("b").reason(), HasSubstr("lets job a go on first, which goes back"));
  EXPECT_TRUE(Comes([&] { return cluster.IsIn("b", RUNNING); })) << cluster.Status("b").reason();
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
}

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
  EXPECT_EQ(Reason(), absl::StrCat("cancelled; it can be continued from checkpoint ", Last().id(),
                                   " (starling checkpoint restore)"));
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
