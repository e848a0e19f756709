#include "worker/host/progress.h"

#include "gtest/gtest.h"

namespace starling {
namespace {

class ProgressTest : public ::testing::Test {
 protected:
  void Expect(Activity::Kind kind, double seconds, double unit_seconds = 0) {
    const Activity activity = progress.Now();
    EXPECT_EQ(activity.kind(), kind);
    EXPECT_DOUBLE_EQ(activity.seconds(), seconds);
    EXPECT_DOUBLE_EQ(activity.unit_seconds(), unit_seconds);
  }
  void Pass(double seconds) { now_us += static_cast<uint64_t>(seconds * 1e6); }

  uint64_t now_us = 7'000'000;
  Progress progress{[this] { return now_us; }};
};

TEST_F(ProgressTest, AUnitThatGetsOnAndOneThatDoesNot) {
  Expect(Activity::IDLE, 0);
  progress.BecomePreparing();
  Pass(3);
  Expect(Activity::PREPARING, 3);
  progress.BecomeServing();
  Expect(Activity::WAITING, 0);
  progress.BeginUnit();
  Pass(1);
  Expect(Activity::COMPUTING, 1);
  progress.Moved();
  Pass(1);
  Expect(Activity::COMPUTING, 1);
  progress.EndUnit(/*waited=*/0.5);
  Expect(Activity::WAITING, 0, 1.5);
  progress.BeginUnit();
  Pass(31);
  Expect(Activity::COMPUTING, 31, 1.5);
}

TEST_F(ProgressTest, WhoWaitsForOthersIsNotTakenForOneThatHangs) {
  progress.BecomeServing();
  progress.BeginUnit();
  progress.BeginWait();
  progress.BeginWait();
  Pass(100);
  Expect(Activity::WAITING, 100);
  progress.EndWait();
  Pass(1);
  Expect(Activity::WAITING, 1);
  progress.EndWait();
  Expect(Activity::COMPUTING, 0);
  progress.EndUnit(/*waited=*/101);
  Expect(Activity::WAITING, 0);
}

// The job is gone, and its last unit does not stop.
TEST_F(ProgressTest, AUnitOfAJobThatIsOverIsStillTold) {
  progress.BecomeServing();
  progress.BeginUnit();
  Pass(40);
  progress.BecomeIdle();
  Expect(Activity::COMPUTING, 40);
  progress.BecomePreparing();
  Expect(Activity::COMPUTING, 40);
  progress.EndUnit(/*waited=*/-1);
  Expect(Activity::PREPARING, 0);
}

// What a unit takes is measured anew for each job, also where one of the job before still runs.
TEST_F(ProgressTest, ALongUnitOfTheJobBeforeSaysNothingOfTheNextJob) {
  progress.BecomeServing();
  progress.BeginUnit();
  Pass(60);
  progress.EndUnit(/*waited=*/0);
  progress.BeginUnit();
  progress.BecomePreparing();
  Expect(Activity::COMPUTING, 0, 0);
  Pass(60);
  progress.EndUnit(/*waited=*/0);
  Expect(Activity::PREPARING, 0, 0);
}

TEST_F(ProgressTest, TheLongestUnitsCountForLong) {
  for (int i = 0; i < 10; ++i) {
    progress.BeginUnit();
    Pass(i == 0 ? 10 : 1);
    progress.EndUnit(0);
  }
  EXPECT_GT(progress.Now().unit_seconds(), 4);
  EXPECT_LT(progress.Now().unit_seconds(), 10);
}

}  // namespace
}  // namespace starling
