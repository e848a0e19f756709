// A job that wallTime stops ends at one step, which its reason names and its evaluation saw.
#include <cstdint>
#include <set>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::HasSubstr;

class WallTimeTest : public CoordinatorTest {
 protected:
  WallTimeTest() {
    cluster.train_samples = 40'000;
    cluster.AddShard("ps-0");
  }
  void Start(JobSpec spec, int workers) {
    Workers(workers);
    spec.mutable_stop()->set_wall_time_seconds(3);
    Submit(spec);
    ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() > 10; }));
  }
  // The step in the reason is the one that describe shows, and what was trained up to there was
  // evaluated.
  void ExpectTestedAtItsEnd() {
    const JobStatus status = cluster.Status("a");
    EXPECT_EQ(status.reason(),
              absl::StrCat("stopped by wallTime at step ", status.step(), " of ", status.steps()));
    ASSERT_EQ(status.epochs_done_size(), 1);
    const EpochResult& result = status.epochs_done(0);
    EXPECT_TRUE(result.evaluated());
    EXPECT_EQ(result.step(), status.step());
    EXPECT_GT(result.test_loss(), 0);
    EXPECT_GT(result.train_loss(), 0);
  }
};

TEST_F(WallTimeTest, StopsTheJobAtOneStepAndEvaluatesIt) {
  Start(Ssp("a", 1, 1), 1);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ExpectTestedAtItsEnd();
  EXPECT_NEAR(cluster.Status("a").running_seconds(), 3, 1);
  cluster.RunFor(absl::Seconds(1));
  ExpectTestedAtItsEnd();
}

TEST_F(WallTimeTest, InBspToo) {
  Start(MiniCluster::Spec("a", Policy::BSP, 2, 2), 2);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ExpectTestedAtItsEnd();
  EXPECT_EQ(cluster.Status("a").sealed_steps(), cluster.Status("a").step());
}

// Nothing is evaluated, so nothing else is waited for.
TEST_F(WallTimeTest, WaitsForTheLastLosses) {
  JobSpec spec = MiniCluster::Spec("a", Policy::BSP, 1, 1);
  spec.clear_evaluate();
  Start(spec, 1);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").running_seconds() > 2.5; }));
  const double early = cluster.train_loss;
  cluster.workers["worker-0"].holds_losses = true;
  cluster.train_loss = 100 * early;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").running_seconds() > 3.3; }));
  cluster.workers["worker-0"].holds_losses = false;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ASSERT_EQ(cluster.Status("a").epochs_done_size(), 1);
  EXPECT_GT(cluster.Status("a").epochs_done(0).train_loss(), 2 * early);
}

TEST_F(WallTimeTest, AnEpochThatIsCompleteIsNotTestedAgain) {
  cluster.train_samples = 40;  // 10 steps an epoch
  JobSpec spec = Ssp("a", 1, 1);
  spec.mutable_stop()->set_epochs(100'000);
  Start(spec, 1);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  const JobStatus status = cluster.Status("a");
  std::set<uint32_t> epochs;
  for (const EpochResult& result : status.epochs_done()) {
    EXPECT_TRUE(epochs.insert(result.epoch()).second);
    EXPECT_TRUE(result.evaluated());
  }
  EXPECT_EQ(status.epochs_done().rbegin()->step(), status.step());
}

TEST_F(WallTimeTest, ACoordinatorThatStartsAgainGoesOnWithTheEnd) {
  Start(Ssp("a", 2, 2), 2);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").running_seconds() > 2.8; }));
  for (int i = 0; i < 20 && cluster.IsIn("a", RUNNING); ++i) {
    cluster.Round();
    cluster.StartCoordinator();
    cluster.RunFor(absl::Milliseconds(150));
  }
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ExpectTestedAtItsEnd();
}

// Shards report again after the coordinator's start; losses may, too.
TEST_F(WallTimeTest, ARestartWhileItWaitsForLossesKeepsItsStep) {
  JobSpec spec = MiniCluster::Spec("a", Policy::BSP, 1, 1);
  spec.clear_evaluate();
  Start(spec, 1);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").running_seconds() > 2.5; }));
  cluster.workers["worker-0"].holds_losses = true;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").epochs_done_size() == 1; }));
  ASSERT_TRUE(cluster.IsIn("a", RUNNING));
  const uint64_t step = cluster.Status("a").step();
  cluster.StartCoordinator();
  cluster.Tick();
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  EXPECT_EQ(cluster.Status("a").step(), step);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.Status("a").step(), step);
  EXPECT_EQ(cluster.Status("a").epochs_done(0).step(), step);
}

TEST_F(WallTimeTest, WithoutAWorkerItCountsWhatShardsHaveYetToReport) {
  Start(Ssp("a", 1, 1), 1);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").running_seconds() > 2.9; }));
  cluster.shards["ps-0"].alive = false;
  cluster.RunFor(absl::Milliseconds(200));
  cluster.workers["worker-0"].draining = true;
  cluster.workers["worker-0"].drained = true;
  cluster.Round();
  cluster.workers["worker-0"].alive = false;
  cluster.RunFor(absl::Milliseconds(500));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  cluster.shards["ps-0"].alive = true;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.Status("a").step(), cluster.covered.begin()->second[0].size());
}

TEST_F(WallTimeTest, WithoutAWorkerItEndsAsItIs) {
  Start(Ssp("a", 1, 1), 1);
  cluster.workers["worker-0"].alive = false;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("stopped by wallTime at step "));
}

TEST_F(WallTimeTest, AJobOfWhichNothingWasDoneDidNotSucceed) {
  Workers(1);
  cluster.workers["worker-0"].prepares = false;
  JobSpec spec = Ssp("a", 1, 1);
  spec.mutable_stop()->set_wall_time_seconds(3);
  Submit(spec);
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("wallTime was over before any of "));
}

// Evaluates its last epoch, also if that was complete.
TEST_F(WallTimeTest, WaitsForTheLastLossesAtAnEpochsEndToo) {
  JobSpec spec = MiniCluster::Spec("a", Policy::BSP, 1, 1);
  spec.clear_evaluate();
  cluster.train_samples = spec.batch().global();  // a step to an epoch
  spec.mutable_stop()->set_epochs(10'000);
  Workers(1);
  spec.mutable_stop()->set_wall_time_seconds(3);
  Submit(spec);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").running_seconds() > 2.9; }));
  cluster.workers["worker-0"].holds_losses = true;
  const absl::Time begin = cluster.now;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_GE(cluster.now - begin, absl::Seconds(1));  // metrics_wait
}

TEST_F(WallTimeTest, WhileItEndsItsPolicyStays) {
  Start(Ssp("a", 1, 1), 1);
  cluster.workers["worker-0"].idle_hands = true;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").running_seconds() > 3.1; }));
  ASSERT_TRUE(cluster.IsIn("a", RUNNING));
  SetPolicyRequest request;
  request.set_name("a");
  request.mutable_policy()->set_kind(Policy::BSP);
  const CallReply reply = cluster.Ask<event::SetPolicy>(request);
  ASSERT_TRUE(std::holds_alternative<absl::Status>(reply));
  EXPECT_THAT(std::string(std::get<absl::Status>(reply).message()), HasSubstr("wallTime is over"));
}

}  // namespace
}  // namespace starling::coordinator
