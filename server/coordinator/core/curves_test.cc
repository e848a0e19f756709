// What the coordinator shows of a job's past, also after a restart.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/protocol/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CoordinatorCurvesTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    cluster.train_samples = 800;  // 200 steps an epoch
    cluster.AddShard("ps-0");
    Workers(1);
  }
  CurvesReply Curves(const std::string& job) {
    CurvesRequest request;
    request.set_name(job);
    const CallReply reply = cluster.Ask<event::Curves>(request);
    EXPECT_TRUE(std::holds_alternative<CurvesReply>(reply)) << std::get<absl::Status>(reply);
    return std::get<CurvesReply>(reply);
  }
  bool RunToStep(const std::string& job, uint64_t step) {
    return cluster.RunUntil([&] { return cluster.Status(job).step() >= step; });
  }
  static void ExpectWhole(const CurvesReply& curves, uint64_t steps) {
    uint64_t before = 0;
    for (const CurvePoint& point : curves.points()) {
      EXPECT_EQ(point.step(), before + point.steps());
      EXPECT_GT(point.steps(), 0u);
      before = point.step();
    }
    EXPECT_EQ(before, steps);
  }
};

// How many workers share a batch does not change how fast the smoothed loss follows.
TEST(SmoothedLossTest, IsThatOfBatchesAndNotOfTheirParts) {
  double losses[2] = {};
  for (const bool in_parts : {false, true}) {
    MiniCluster cluster;
    cluster.bsp_in_parts = in_parts;
    cluster.AddShard("ps-0");
    cluster.AddWorker("worker-0");
    JobSpec spec = MiniCluster::Spec("a", Policy::BSP, 1, 1);
    ASSERT_GT(spec.batch().micro_batches(), 1u);
    cluster.Submit(spec);
    cluster.train_loss = 2;
    ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 1; }));
    cluster.train_loss = 1;
    ASSERT_TRUE(cluster.RunUntil([&] { return cluster.IsIn("a", SUCCEEDED); }));
    losses[in_parts] = cluster.Status("a").train_loss();
  }
  EXPECT_GT(losses[0], 1.05) << "the first batch weighs in it";
  EXPECT_NEAR(losses[0], losses[1], 1e-9);
}

TEST_F(CoordinatorCurvesTest, TellsLossRateAndThroughputToTheLastStep) {
  JobSpec spec = Ssp("a", 1, 1);
  Schedule::Step& schedule = *spec.mutable_optimizer()->mutable_learning_rate()->mutable_step();
  schedule.set_initial(0.5);
  schedule.set_factor(0.5);
  schedule.set_every_steps(200);
  Submit(spec);
  cluster.train_loss = 2;
  ASSERT_TRUE(RunToStep("a", 200));
  cluster.train_loss = 1;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  const CurvesReply curves = Curves("a");
  EXPECT_EQ(curves.status().name(), "a");
  ExpectWhole(curves, 400);
  EXPECT_GE(curves.points_size(), 20);
  EXPECT_DOUBLE_EQ(curves.points(3).train_loss(), 2);
  EXPECT_DOUBLE_EQ(curves.points(curves.points_size() - 1).train_loss(), 1);
  EXPECT_FLOAT_EQ(static_cast<float>(curves.points(3).learning_rate()), 0.5f);
  EXPECT_FLOAT_EQ(static_cast<float>(curves.points(curves.points_size() - 1).learning_rate()),
                  0.25f);
  EXPECT_TRUE(curves.points(3).has_train_accuracy());
  EXPECT_NEAR(curves.points(3).samples_per_second(), 80, 15) << "a step of 4 samples in 50 ms";
  uint64_t samples = 0;
  for (const CurvePoint& point : curves.points()) samples += point.samples();
  EXPECT_EQ(samples, 1600u) << "each sample is in one point";
  ASSERT_EQ(curves.status().epochs_done_size(), 2);
  EXPECT_EQ(curves.status().epochs_done(0).step(), 200u);
  EXPECT_EQ(curves.status().epochs_done(1).step(), 400u);
  EXPECT_GT(curves.status().epochs_done(0).unix_seconds(), 1.7e9);
}

TEST_F(CoordinatorCurvesTest, SurvivesARestartButForTheLastSeconds) {
  cluster.train_samples = 4000;
  Submit(Ssp("a", 1, 1));
  ASSERT_TRUE(RunToStep("a", 300));
  const CurvesReply before = Curves("a");
  cluster.StartCoordinator();
  const CurvesReply after = Curves("a");
  ASSERT_GT(after.points_size(), 0);
  const CurvePoint& last = after.points(after.points_size() - 1);
  EXPECT_LE(before.points(before.points_size() - 1).seconds() - last.seconds(), 5.5);
  EXPECT_EQ(before.points(after.points_size() - 1).SerializeAsString(), last.SerializeAsString());
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ExpectWhole(Curves("a"), 2000);
  // A job that is over is stored to its last step.
  const std::string whole = Curves("a").points(Curves("a").points_size() - 1).SerializeAsString();
  const int points = Curves("a").points_size();
  cluster.StartCoordinator();
  ASSERT_EQ(Curves("a").points_size(), points);
  EXPECT_EQ(Curves("a").points(points - 1).SerializeAsString(), whole);
}

// What an earlier coordinator was told of an epoch is lost with it.
TEST_F(CoordinatorCurvesTest, ALossOverAPartOfAnEpochSaysSo) {
  Submit(Ssp("a", 1, 1));
  ASSERT_TRUE(RunToStep("a", 120));
  cluster.StartCoordinator();
  EXPECT_TRUE(cluster.Status("a").has_train_loss()) << "the smoothed one is kept";
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  const JobStatus status = cluster.Status("a");
  ASSERT_EQ(status.epochs_done_size(), 2);
  const EpochResult& part = status.epochs_done(0);
  EXPECT_DOUBLE_EQ(part.train_loss(), 0.5);
  EXPECT_EQ(part.samples(), 800u);
  EXPECT_GT(part.train_samples(), 200u);
  EXPECT_LE(part.train_samples(), 330u);
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("epoch 1 is complete: train loss 0.5000 (of "));
  EXPECT_EQ(status.epochs_done(1).samples(), 0u) << "it had all reports";
}

TEST_F(CoordinatorCurvesTest, WithoutReportsThereIsNoLoss) {
  JobSpec spec = Ssp("a", 1, 1);
  spec.clear_evaluate();
  Submit(spec);
  cluster.workers["worker-0"].holds_losses = true;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  const JobStatus status = cluster.Status("a");
  EXPECT_FALSE(status.has_train_loss());
  ASSERT_EQ(status.epochs_done_size(), 2);
  EXPECT_FALSE(status.epochs_done(0).has_train_loss());
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("epoch 1 is complete: train loss not reported"));
}

TEST_F(CoordinatorCurvesTest, AFewLateReportsDoNotReplaceTheLossOfAnEpoch) {
  JobSpec spec = Ssp("a", 1, 1);
  spec.clear_evaluate();
  Submit(spec);
  ASSERT_TRUE(RunToStep("a", 190));
  cluster.workers["worker-0"].holds_losses = true;
  cluster.train_loss = 100;
  ASSERT_TRUE(RunToStep("a", 210));
  cluster.StartCoordinator();
  ASSERT_TRUE(RunToStep("a", 230));
  cluster.workers["worker-0"].holds_losses = false;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  const EpochResult result = cluster.Status("a").epochs_done(0);
  EXPECT_DOUBLE_EQ(result.train_loss(), 0.5);
}

TEST_F(CoordinatorCurvesTest, ALongJobsRecordsAreAsFewAsItsPointsAndGoWithTheJob) {
  JobSpec spec = Ssp("a", 1, 1);
  spec.clear_evaluate();
  spec.mutable_stop()->set_epochs(30);
  Submit(spec);
  const auto chunks = [&] {
    int count = 0;
    for (const auto& [key, value] : cluster.store) count += absl::StrContains(key, "/curve/");
    return count;
  };
  int most = 0;
  ASSERT_TRUE(cluster.RunUntil(
      [&] {
        most = std::max(most, chunks());
        return cluster.IsIn("a", SUCCEEDED);
      },
      absl::Hours(1)));
  const CurvesReply curves = Curves("a");
  ExpectWhole(curves, 6'000);
  EXPECT_LT(static_cast<size_t>(curves.points_size()), limits::kCurvePointsMax);
  EXPECT_EQ(most, 8) << "it was nearly full before neighbours were merged";
  EXPECT_EQ(chunks(), (curves.points_size() + 63) / 64);
  cluster.StartCoordinator();
  ExpectWhole(Curves("a"), 6'000);
  EXPECT_TRUE(AskJob<event::DeleteJob>("a").ok());
  EXPECT_EQ(chunks(), 0);
}

TEST_F(CoordinatorCurvesTest, AJobThatFailsOrIsCancelledKeepsItsCurve) {
  Submit(Ssp("a", 1, 1));
  ASSERT_TRUE(RunToStep("a", 100));
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  const CurvesReply curves = Curves("a");
  EXPECT_EQ(curves.status().state(), CANCELLED);
  ExpectWhole(curves, curves.status().step());
}

// ---- Event files ----

TEST_F(CoordinatorCurvesTest, AJobWithAFolderForEventFilesHasEachPointAndTestWritten) {
  JobSpec spec = Ssp("a", 1, 1);
  spec.set_tensorboard("/runs/a");
  Submit(spec);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  const CurvesReply curves = Curves("a");
  std::vector<std::string> points, results;
  for (const CurveNews& news : cluster.curve_news) {
    EXPECT_EQ(news.folder, "/runs/a");
    EXPECT_EQ(news.session_step, 0u);
    if (news.point) points.push_back(news.point->SerializeAsString());
    if (news.result) results.push_back(news.result->SerializeAsString());
    EXPECT_EQ(news.over, &news == &cluster.curve_news.back());
  }
  ASSERT_EQ(points.size(), static_cast<size_t>(curves.points_size()));
  for (int i = 0; i < curves.points_size(); ++i)
    EXPECT_EQ(points[i], curves.points(i).SerializeAsString());
  ASSERT_EQ(results.size(), 2u);
  EXPECT_TRUE(curves.status().epochs_done(1).evaluated());
}

// A client that asks twice a second makes the coordinator copy little, however long the job is.
TEST_F(CoordinatorCurvesTest, BriefAnswersHaveFewOfManyEpochs) {
  cluster.train_samples = cluster.test_samples = 4;  // a step an epoch
  JobSpec spec = Ssp("a", 1, 1);
  spec.mutable_stop()->set_epochs(601);
  Submit(spec);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.IsIn("a", SUCCEEDED); }, absl::Hours(1)));
  const auto check = [&] {
    const auto jobs = std::get<ListJobsReply>(cluster.Ask<event::ListJobs>());
    ASSERT_EQ(jobs.jobs(0).epochs_done_size(), 1);
    EXPECT_EQ(jobs.jobs(0).epochs_done(0).epoch(), 600u);
    CurvesRequest request;
    request.set_name("a");
    const auto curves = std::get<CurvesReply>(cluster.Ask<event::Curves>(request, true));
    ASSERT_EQ(curves.status().epochs_done_size(), 301);
    for (int i = 0; i < 301; ++i) {
      EXPECT_EQ(curves.status().epochs_done(i).step(), 2u * static_cast<uint64_t>(i) + 1);
      EXPECT_TRUE(curves.status().epochs_done(i).evaluated());
    }
    EXPECT_EQ(cluster.Status("a").epochs_done_size(), 601);
  };
  check();
  cluster.StartCoordinator();
  check();
}

TEST_F(CoordinatorCurvesTest, ABriefStatusHasTheNewestEpochAndTheNewestThatWasEvaluated) {
  JobSpec spec = Ssp("a", 1, 1);
  spec.mutable_evaluate()->set_every_epochs(2);
  spec.mutable_stop()->set_epochs(5);
  Submit(spec);
  const auto epochs = [&] {
    std::vector<uint32_t> epochs;
    const auto jobs = std::get<ListJobsReply>(cluster.Ask<event::ListJobs>());
    for (const EpochResult& result : jobs.jobs(0).epochs_done()) epochs.push_back(result.epoch());
    return epochs;
  };
  EXPECT_THAT(epochs(), ElementsAre());
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").epoch() == 1; }));
  EXPECT_THAT(epochs(), ElementsAre(0));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").epoch() == 3; }));
  EXPECT_THAT(epochs(), ElementsAre(1, 2));
}

TEST_F(CoordinatorCurvesTest, AJobWithoutAFolderHasNoneWritten) {
  Submit(Ssp("a", 1, 1));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_TRUE(cluster.curve_news.empty());
}

TEST_F(CoordinatorCurvesTest, AfterARestartTheSessionBeginsBehindTheLastStoredPoint) {
  cluster.train_samples = 2000;
  JobSpec spec = Ssp("a", 1, 1);
  spec.set_tensorboard("/runs/a");
  Submit(spec);
  ASSERT_TRUE(RunToStep("a", 700));
  cluster.curve_news.clear();
  cluster.StartCoordinator();
  const CurvesReply stored = Curves("a");
  const uint64_t last = stored.points(stored.points_size() - 1).step();
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  uint64_t before = last;
  for (const CurveNews& news : cluster.curve_news) {
    EXPECT_EQ(news.session_step, last + 1);
    if (!news.point) continue;
    EXPECT_EQ(news.point->step(), before + news.point->steps()) << "goes on from what is stored";
    before = news.point->step();
  }
  EXPECT_EQ(before, 1000u);
}

TEST_F(CoordinatorCurvesTest, AFolderThatCannotBeWrittenOrIsInUseIsRefused) {
  JobSpec spec = Ssp("a", 1, 1);
  spec.set_tensorboard("/runs/a");
  SubmitRequest request;
  *request.mutable_spec() = spec;
  const CallReply reply = cluster.Ask<event::Submit>(
      request, absl::FailedPreconditionError("cannot write in /runs/a: Read-only file system"));
  ASSERT_TRUE(std::holds_alternative<absl::Status>(reply));
  EXPECT_EQ(std::get<absl::Status>(reply).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(std::get<absl::Status>(reply).message()),
      HasSubstr("tensorboard: cannot write in /runs/a: Read-only file system (the coordinator"));
  Submit(spec);
  spec.set_name("b");
  EXPECT_THAT(std::string(SubmitError(spec).message()),
              HasSubstr("job a writes its event files to /runs/a"));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_TRUE(SubmitError(spec).ok()) << "job a is over";
  spec.set_name("c");
  spec.set_tensorboard("runs/c");
  EXPECT_THAT(std::string(SubmitError(spec).message()),
              HasSubstr("tensorboard: expected an absolute path"));
}

// The disk is not looked at for what is refused anyway, or for a dry run.
TEST_F(CoordinatorCurvesTest, AFolderIsLookedAtOnlyForAJobThatIsGoodOtherwise) {
  const JobSpec good = [&] {
    JobSpec spec = Ssp("a", 1, 1);
    spec.set_tensorboard("/runs/a");
    return spec;
  }();
  SubmitRequest request;
  *request.mutable_spec() = good;
  EXPECT_TRUE(cluster.core->AsksForDisk(request));
  request.set_dry_run(true);
  EXPECT_FALSE(cluster.core->AsksForDisk(request));
  request.set_dry_run(false);
  for (const char* folder :
       {"", "runs/a", "/", "/other", "/runsa", "/runs/../etc", "/runs/a/../.."}) {
    request.mutable_spec()->set_tensorboard(folder);
    EXPECT_FALSE(cluster.core->AsksForDisk(request)) << folder;
  }
  *request.mutable_spec() = good;
  request.mutable_spec()->mutable_batch()->set_global(0);
  EXPECT_FALSE(cluster.core->AsksForDisk(request));
  Submit(good);
  *request.mutable_spec() = good;
  EXPECT_FALSE(cluster.core->AsksForDisk(request)) << "its name is taken";
  request.mutable_spec()->set_name("b");
  EXPECT_FALSE(cluster.core->AsksForDisk(request)) << "its folder is taken";
  request.mutable_spec()->set_tensorboard("/runs/b/../b");
  EXPECT_TRUE(cluster.core->AsksForDisk(request));
}

TEST_F(CoordinatorCurvesTest, AFolderMustLieBeneathTheRoot) {
  JobSpec spec = Ssp("a", 1, 1);
  spec.set_tensorboard("/runs/../etc");
  EXPECT_THAT(std::string(SubmitError(spec).message()),
              HasSubstr("expected a folder beneath /runs, the coordinator's --tensorboard-root"));
}

TEST(CoordinatorCurvesRoot, WithoutOneNoFolderIsTaken) {
  auto core = Coordinator::Create({}, {});
  ASSERT_TRUE(core.ok()) << core.status();
  SubmitRequest request;
  request.mutable_spec()->set_tensorboard("/runs/a");
  EXPECT_FALSE((*core)->AsksForDisk(request));
}

TEST_F(CoordinatorCurvesTest, AnUnknownJobIsNotFound) {
  CurvesRequest request;
  request.set_name("nothing");
  const CallReply reply = cluster.Ask<event::Curves>(request);
  ASSERT_TRUE(std::holds_alternative<absl::Status>(reply));
  EXPECT_EQ(std::get<absl::Status>(reply).code(), absl::StatusCode::kNotFound);
}

TEST_F(CoordinatorCurvesTest, StateOfAnOlderVersionIsReadAndOfANewerOneRefused) {
  StoredCluster stored;
  ASSERT_TRUE(stored.ParseFromString(cluster.store[records::Cluster()]));
  stored.set_schema(records::kSchemaOldest);
  cluster.store[records::Cluster()] = stored.SerializeAsString();
  cluster.StartCoordinator();
  ASSERT_TRUE(stored.ParseFromString(cluster.store[records::Cluster()]));
  EXPECT_EQ(stored.schema(), records::kSchema);
  stored.set_schema(records::kSchema + 1);
  cluster.store[records::Cluster()] = stored.SerializeAsString();
  const auto refused = Coordinator::Create({}, cluster.store);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("start the version that wrote it"));
}

TEST_F(CoordinatorCurvesTest, ADamagedCurveIsNamed) {
  cluster.store[records::Job(7) + "/curve/x"] = "";
  EXPECT_THAT(std::string(Coordinator::Create({}, cluster.store).status().message()),
              HasSubstr("/curve/x"));
}

}  // namespace
}  // namespace starling::coordinator
