// Two clocks: measurements follow the monotonic clock, what people see follows the wall clock.
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::HasSubstr;

class ClockTest : public CoordinatorTest {
 protected:
  ClockTest() {
    cluster.train_samples = 400'000;
    cluster.AddShard("ps-0");
    Workers(2);
    JobSpec spec = Once(Ssp("a", 1, 2));
    spec.mutable_stop()->set_wall_time_seconds(60);
    Submit(spec);
    cluster.RunFor(absl::Seconds(1));
  }
  // By an hour, one way, then two the other way, and back.
  void StepAbout() {
    for (const absl::Duration step : {absl::Hours(1), -absl::Hours(2), absl::Hours(1)}) {
      cluster.wall_ahead += step;
      cluster.RunFor(absl::Seconds(3));
    }
  }
};

TEST_F(ClockTest, StepsOfTheWallClockEndNoJobAndLoseNobody) {
  StepAbout();
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.JobLog("a");
  EXPECT_EQ(cluster.Status("a").workers(), 2u);
  EXPECT_NEAR(cluster.Status("a").running_seconds(), 10, 0.3);
  // A worker that is really gone is missed as soon as before, whichever way the clock was set.
  cluster.workers["worker-1"].alive = false;
  cluster.wall_ahead -= absl::Hours(1);
  cluster.RunFor(absl::Seconds(6));
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_NEAR(cluster.Status("a").running_seconds(), 60, 0.5);
}

TEST_F(ClockTest, PeopleAreShownTheWallClock) {
  cluster.wall_ahead = -absl::Hours(1);
  Submit(Ssp("b", 1, 2));
  EXPECT_EQ(cluster.Status("b").submitted(),
            absl::FormatTime(absl::RFC3339_sec, cluster.now - absl::Hours(1), absl::UTCTimeZone()));
}

// The next coordinator's monotonic clock starts elsewhere, and the wall clock was set meanwhile.
TEST_F(ClockTest, RunningTimeGoesOnAfterARestart) {
  cluster.RunFor(absl::Seconds(19));
  for (const absl::Duration step : {absl::Hours(30), -absl::Hours(50)}) {
    cluster.now += absl::Seconds(5);  // while no coordinator is there
    cluster.now -= absl::Hours(10);
    cluster.wall_ahead += step;
    const double before = cluster.Status("a").running_seconds();
    cluster.StartCoordinator();
    EXPECT_LE(cluster.Status("a").running_seconds(), before + 0.1);
    EXPECT_GE(cluster.Status("a").running_seconds(), before - 10);
    cluster.RunFor(absl::Seconds(10));
    EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  }
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("stopped by wallTime"));
  EXPECT_NEAR(cluster.Status("a").running_seconds(), 60, 0.5);
  const double ran = cluster.Status("a").running_seconds();
  cluster.StartCoordinator();
  EXPECT_EQ(cluster.Status("a").running_seconds(), ran);
}

TEST_F(ClockTest, StepsThatWereDoneAreKeptWithTheEnd) {
  const uint64_t steps = cluster.Status("a").step();
  ASSERT_GT(steps, 5u);
  cluster.workers["worker-0"].idle_hands = cluster.workers["worker-1"].idle_hands = true;
  cluster.shards["ps-0"].alive = false;
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_GE(cluster.Status("a").step(), steps);
  const uint64_t at_end = cluster.Status("a").step();
  cluster.StartCoordinator();
  EXPECT_EQ(cluster.Status("a").step(), at_end);
}

}  // namespace
}  // namespace starling::coordinator
