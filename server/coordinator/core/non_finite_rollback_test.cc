// Jobs that go back because of values that are not finite (goBackIfNotFinite).
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/rollback_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class NonFiniteRollbackTest : public RollbackTest {
 protected:
  static JobSpec GoesBackJob() {
    JobSpec spec = Job("a");
    spec.set_go_back_if_not_finite(true);
    return spec;
  }
  // Its only worker finds the same twice.
  void Diverges() {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(Comes([&] { return cluster.Status("a").workers() == 1; }));
      cluster.Round();
      Finds("worker-0", 99);
    }
  }
  // Three times worker-1 finds something that worker-0 then does.
  void IsQuarantined() {
    for (int time = 1; time <= 3; ++time) {
      ASSERT_TRUE(Comes([&] {
        const JobStatus status = cluster.Status("a");
        return status.workers() == 2 && status.step() % 100 < 40;
      })) << Reason();
      cluster.RunFor(absl::Seconds(0.2));
      Finds("worker-1", cluster.Status("a").step() % 100 + 40);
      ASSERT_TRUE(Comes([&] {
        return absl::StrContains(cluster.JobLog("a"), absl::StrCat("did not, time ", time));
      }));
    }
    EXPECT_THAT(cluster.JobLog("a"), HasSubstr("worker-1 is quarantined"));
  }
};

TEST_F(NonFiniteRollbackTest, WhereAJobDivergesItGoesBackOnceIfItAsksForThat) {
  Submit(GoesBackJob());
  RunBeyond(1);
  const uint64_t step = Last().step();
  ASSERT_NO_FATAL_FAILURE(Diverges());
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(Description().restore().step(), step);
  EXPECT_THAT(cluster.Status("a").last_restart(), HasSubstr("so it is the job's own: goes back"));
  cluster.StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(Diverges());
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("has gone back to a checkpoint for that before"),
                              HasSubstr("can be continued from checkpoint")));
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
}

TEST_F(NonFiniteRollbackTest, OnceItHasPassedWhereItDivergedItMayGoBackAgain) {
  Submit(GoesBackJob());
  RunBeyond(1);
  ASSERT_NO_FATAL_FAILURE(Diverges());
  ASSERT_TRUE(GoesBack(1)) << Reason();
  RunBeyond(2);
  ASSERT_NO_FATAL_FAILURE(Diverges());
  EXPECT_TRUE(GoesBack(2)) << Reason();
}

TEST_F(NonFiniteRollbackTest, WhereItMayNotGoBackItsEndSaysFromWhatToContinue) {
  for (const bool asks : {true, false}) {
    JobSpec spec = GoesBackJob();
    spec.set_go_back_if_not_finite(asks);
    spec.set_restarts_max(0);
    Submit(spec);
    RunBeyond(1);
    const std::string last = Last().id();
    ASSERT_NO_FATAL_FAILURE(Diverges());
    EXPECT_TRUE(cluster.IsIn("a", FAILED));
    EXPECT_THAT(Reason(), HasSubstr(absl::StrCat("continued from checkpoint ", last)));
    EXPECT_EQ(absl::StrContains(Reason(), "maxRestarts: 0"), asks) << Reason();
    ASSERT_TRUE(AskJob<event::DeleteJob>("a").ok());
  }
}

// The coordinator does not know yet whether there is a checkpoint.
TEST_F(NonFiniteRollbackTest, AQuarantineAloneDropsNoValuesForACheckpointThatMayNotBeThere) {
  JobSpec spec = GoesBackJob();
  spec.set_workers_max(2);
  Submit(spec);
  cluster.AddWorker("worker-1");
  RunBeyond(1);
  cluster.disk_hangs = true;
  cluster.StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(IsQuarantined());
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << Reason();
  cluster.disk_hangs = false;
  EXPECT_TRUE(Ends("a", SUCCEEDED)) << Reason();
  EXPECT_EQ(cluster.Status("a").restarts(), 0u);
}

TEST_F(NonFiniteRollbackTest, AfterAQuarantineAJobGoesBackOnceIfItAsksForThat) {
  for (const bool asks : {true, false}) {
    JobSpec spec = GoesBackJob();
    spec.set_workers_max(2);
    spec.set_go_back_if_not_finite(asks);
    Submit(spec);
    cluster.AddWorker("worker-1");
    RunBeyond(1);
    ASSERT_NO_FATAL_FAILURE(IsQuarantined());
    ASSERT_TRUE(Ends("a", SUCCEEDED)) << Reason();
    EXPECT_EQ(cluster.Status("a").restarts(), asks ? 1u : 0u);
    if (asks) {
      EXPECT_THAT(cluster.Status("a").last_restart(),
                  AllOf(HasSubstr("worker-1 is quarantined"), HasSubstr("goes back to step ")));
      EachItemOnce(1, 4, 100);
    }
    ASSERT_TRUE(AskJob<event::DeleteJob>("a").ok());
  }
}

// In SSP, too, where no other job minds.
TEST_F(NonFiniteRollbackTest, AQuarantineForTheJobOutlastsItsEra) {
  JobSpec spec = Job("a", /*every_steps=*/30, Policy::SSP);
  spec.mutable_stop()->set_epochs(8);
  spec.set_go_back_if_not_finite(true);
  spec.set_workers_max(2);
  Submit(spec);
  cluster.AddWorker("worker-1");
  RunBeyond(1);
  ASSERT_NO_FATAL_FAILURE(IsQuarantined());
  ASSERT_TRUE(GoesBack()) << Reason();
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Status("a").workers(), 1u) << cluster.JobLog("a");
  EXPECT_TRUE(Ends("a", SUCCEEDED)) << Reason();
}

TEST_F(NonFiniteRollbackTest, SumsThatAreNotFiniteAreTheJobsOwn) {
  Submit(GoesBackJob());
  RunBeyond(1);
  cluster.shards["ps-0"].refuses = "the sum of the workers' gradients is not finite";
  cluster.shards["ps-0"].diverges = true;
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").era() == 1; })) << Reason();
  cluster.shards["ps-0"].refuses.clear();
  cluster.shards["ps-0"].diverges = false;
  EXPECT_TRUE(Ends("a", SUCCEEDED)) << Reason();
  EXPECT_EQ(cluster.Status("a").restarts(), 1u);
}

}  // namespace
}  // namespace starling::coordinator
