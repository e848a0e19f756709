// Lines about a job on its way.
#include <limits>
#include <string>

#include "tools/cli/progress.h"
#include "tools/cli/testing/cli_fixture.h"

namespace starling::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Progress, HugeLossesAreShort) {
  JobStatus status = Running();
  status.set_train_loss(1.25e38);
  EXPECT_THAT(ProgressLine(status, JobSpec()), HasSubstr("  loss 1.25e+38  "));
  AddEpoch(&status, 0.1);
  EpochResult& result = *status.mutable_epochs_done(0);
  result.set_train_loss(3.25e37);
  result.set_test_loss(1e-7);
  EXPECT_EQ(EpochLine(result, status),
            "epoch 1/5: train loss 3.25e+37, test loss 1e-07, test accuracy 0.1000, 9.1s");
}

TEST(Progress, ALossOfAPartOfAnEpochSaysSo) {
  JobStatus status = Running();
  status.clear_train_loss();
  EXPECT_THAT(ProgressLine(status, JobSpec()), Not(HasSubstr("loss")));
  AddEpoch(&status, 0.1);
  EpochResult& result = *status.mutable_epochs_done(0);
  result.set_train_samples(320);
  result.set_samples(400);
  EXPECT_THAT(EpochLine(result, status), HasSubstr(": train loss 0.5000 (of 320 of 400 samples),"));
  result.clear_train_loss();
  EXPECT_THAT(EpochLine(result, status), HasSubstr(": train loss not reported, test loss"));
}

TEST(Progress, OneLineSaysItAll) {
  const JobReply reply = Reply(Running());
  EXPECT_EQ(ProgressLine(reply.status(), reply.spec()),
            "digits  epoch 2/5  step 812/2,345  1,533 samples/s  loss 0.1312  staleness 1/2  83% "
            "hidden  ETA 1m40s");
}

TEST(Progress, WhatHasNoBoundShowsNone) {
  JobReply reply = Reply(Running());
  JobStatus* status = reply.mutable_status();
  status->set_epochs(1000000);
  status->set_staleness_bound(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(ProgressLine(*status, reply.spec()),
            "digits  epoch 2  step 812  1,533 samples/s  loss 0.1312  staleness 1  83% hidden");
  reply.mutable_spec()->mutable_stop()->set_wall_time_seconds(30);
  status->set_running_seconds(21);
  EXPECT_THAT(ProgressLine(*status, reply.spec()), HasSubstr("ETA 9.0s"));
}

TEST(Progress, TheShortLineFitsATerminal) {
  const JobReply reply = Reply(Running());
  EXPECT_EQ(ShortProgressLine(reply.status(), reply.spec()),
            "epoch 2/5 step 812/2,345 1,533/s loss 0.1312 stale 1/2 83% hidden ETA 1m40s");
}

TEST(Progress, BehindTheLastEpochNoneIsOpen) {
  JobReply reply = Reply(Running());
  reply.mutable_status()->set_epoch(5);
  EXPECT_THAT(ProgressLine(reply.status(), reply.spec()), HasSubstr("epoch 5/5"));
}

TEST(Progress, APendingJobSaysWhatItWaitsFor) {
  JobStatus status = Running();
  status.set_state(PENDING);
  status.set_reason("waits for 1 more worker");
  EXPECT_EQ(ProgressLine(status, JobSpec()), "digits  PENDING: waits for 1 more worker");
}

}  // namespace
}  // namespace starling::cli
