// The evidence that the core gathers on a job. How it is judged is tested in ../explain.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CoordinatorExplainTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    cluster.train_samples = 24'000;  // a job that does not end
    cluster.AddShard("ps-0");
  }

  ExplainReply Explain(const std::string& job) {
    ExplainRequest request;
    request.set_name(job);
    const CallReply reply = cluster.Ask<event::Explain>(request);
    const auto* explained = std::get_if<ExplainReply>(&reply);
    EXPECT_NE(explained, nullptr) << std::get<absl::Status>(reply);
    return explained == nullptr ? ExplainReply() : *explained;
  }
  std::string Cause(const std::string& job) {
    const ExplainReply reply = Explain(job);
    return reply.findings().empty() ? "" : reply.findings(0).cause();
  }

  // Workers that each compute one step in a round of 50 ms, with two samples.
  void Train(int workers) {
    Workers(workers);
    for (auto& [name, worker] : cluster.workers) {
      worker.pace.set_units(1);
      worker.pace.set_samples(2);
      worker.pace.set_total(0.05);
      worker.pace.set_forward(0.05);
    }
    JobSpec spec = Ssp("a", 1, static_cast<uint32_t>(workers));
    spec.mutable_stop()->set_epochs(1);
    Submit(spec);
    ASSERT_TRUE(cluster.RunUntil([&] {
      return cluster.Status("a").workers() == static_cast<uint32_t>(workers) &&
             cluster.Status("a").step() > 10;
    }));
    cluster.RunFor(absl::Seconds(5));
  }
};

TEST_F(CoordinatorExplainTest, AJobThatIsNotThere) {
  ExplainRequest request;
  request.set_name("nobody");
  const CallReply reply = cluster.Ask<event::Explain>(request);
  EXPECT_TRUE(absl::IsNotFound(std::get<absl::Status>(reply)));
}

TEST_F(CoordinatorExplainTest, CheckpointsThatDoNotGetThrough) {
  Workers(1);
  JobSpec spec = Ssp("a", 1, 1);
  spec.mutable_checkpoint()->set_every_steps(20);
  spec.mutable_checkpoint()->set_keep(1);
  cluster.RunFor(absl::Seconds(1));
  Submit(spec);
  ASSERT_TRUE(cluster.RunUntil([&] { return !cluster.checkpoints.empty(); }));
  EXPECT_EQ(Cause("a"), "");
  cluster.shards["ps-0"].checkpoint_fails = "no space left";
  ASSERT_TRUE(cluster.RunUntil([&] { return Cause("a") == "checkpoint-failing"; }));
  EXPECT_THAT(Explain("a").findings(0).text(),
              AllOf(HasSubstr("ps-0: no space left"), HasSubstr("; the last one is of step ")));
  cluster.shards["ps-0"].checkpoint_fails.clear();
  EXPECT_TRUE(cluster.RunUntil([&] { return Cause("a").empty(); }));
  cluster.disk_hangs = true;
  cluster.RunFor(absl::Seconds(50));
  EXPECT_EQ(Cause("a"), "");
  cluster.RunFor(absl::Minutes(3));
  EXPECT_EQ(Cause("a"), "checkpoint-failing");
  EXPECT_THAT(Explain("a").findings(0).text(), HasSubstr("/checkpoints has not answered for 1m"));
}

TEST_F(CoordinatorExplainTest, AWorkerThatHasNoMemoryForTheJob) {
  Workers(1);
  Submit(Ssp("a", 1, 2));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= 3; }));
  EXPECT_EQ(Cause("a"), "");
  cluster.AddWorker("worker-1");
  cluster.workers["worker-1"].no_room = "the job needs 3 GiB";
  cluster.RunFor(absl::Seconds(2));
  const ExplainReply reply = Explain("a");
  ASSERT_EQ(Cause("a"), "no-memory");
  EXPECT_EQ(reply.findings(0).subject(), "worker-1");
  EXPECT_THAT(reply.findings(0).text(),
              HasSubstr("which has no memory for it: the job needs 3 GiB"));
}

TEST_F(CoordinatorExplainTest, NothingIsWrongAndWhereTheTimeGoes) {
  Train(2);
  const ExplainReply reply = Explain("a");
  EXPECT_EQ(reply.findings_size(), 0) << reply.DebugString();
  EXPECT_EQ(reply.status().name(), "a");
  ASSERT_EQ(reply.phases_size(), 6);
  EXPECT_EQ(reply.phases(1).phase(), "compute");
  EXPECT_NEAR(reply.phases(1).seconds(), 0.05, 1e-6);
}

TEST_F(CoordinatorExplainTest, AJobThatWaitsForWorkers) {
  Workers(1);
  Submit(Ssp("a", 3, 3));
  cluster.RunFor(absl::Seconds(20));
  const ExplainReply reply = Explain("a");
  ASSERT_EQ(reply.findings_size(), 1);
  EXPECT_EQ(reply.findings(0).cause(), "pending");
  EXPECT_NEAR(reply.findings(0).figure(), 20, 1);
  EXPECT_THAT(reply.findings(0).text(),
              HasSubstr("needs 3 workers (workers.min); the cluster has 1"));
  EXPECT_EQ(reply.phases_size(), 0);
}

TEST_F(CoordinatorExplainTest, ASlowWorkerSoonAfterItBecameSlow) {
  Train(2);
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(Cause("a"), "");
  StepTimes& pace = cluster.workers["worker-1"].pace;
  pace.set_total(0.15);
  pace.set_forward(0.15);
  cluster.RunFor(absl::Seconds(32));
  const ExplainReply reply = Explain("a");
  ASSERT_EQ(reply.findings_size(), 1) << reply.DebugString();
  EXPECT_EQ(reply.findings(0).cause(), "slow-worker");
  EXPECT_EQ(reply.findings(0).subject(), "worker-1");
  EXPECT_NEAR(reply.findings(0).figure(), 3, 0.01);
  EXPECT_THAT(reply.findings(0).text(), HasSubstr("worker-1:1"));
}

TEST_F(CoordinatorExplainTest, AShardThatApplies) {
  Train(2);
  for (auto& [name, worker] : cluster.workers) {
    worker.pace.set_total(0.1);
    worker.pace.set_wait(0.05);
  }
  cluster.shards["ps-0"].pace.set_pushes(1);
  cluster.shards["ps-0"].pace.set_applies(1);
  cluster.shards["ps-0"].pace.set_apply(0.04);
  cluster.RunFor(absl::Seconds(35));
  const ExplainReply reply = Explain("a");
  ASSERT_EQ(reply.findings_size(), 1) << reply.DebugString();
  EXPECT_EQ(reply.findings(0).cause(), "apply-bound");
  EXPECT_EQ(reply.findings(0).subject(), "ps-0");
  EXPECT_NEAR(reply.findings(0).figure(), 0.04, 1e-6);
}

TEST_F(CoordinatorExplainTest, ASilentWorkerThenALostOneUntilItIsBack) {
  Train(2);
  cluster.workers["worker-1"].alive = false;
  cluster.RunFor(absl::Seconds(3));
  ExplainReply reply = Explain("a");
  ASSERT_GE(reply.findings_size(), 1);
  EXPECT_EQ(reply.findings(0).cause(), "missing-worker");
  EXPECT_NEAR(reply.findings(0).figure(), 3, 0.3);
  cluster.RunFor(absl::Seconds(27));
  reply = Explain("a");
  ASSERT_GE(reply.findings_size(), 1);
  EXPECT_EQ(reply.findings(0).cause(), "missing-worker");
  EXPECT_EQ(reply.findings(0).subject(), "worker-1");
  EXPECT_NEAR(reply.findings(0).figure(), 30, 0.5);
  EXPECT_THAT(reply.findings(0).text(), HasSubstr("no report for 5.0 s"));
  EXPECT_THAT(reply.findings(0).text(), HasSubstr("worker-1:1"));
  cluster.Rejoin("worker-1");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").workers() == 2; }));
  EXPECT_EQ(Cause("a"), "");
}

TEST_F(CoordinatorExplainTest, ALostWorkerThatIsBackWithoutMemoryIsNotMissed) {
  Train(2);
  cluster.workers["worker-1"].alive = false;
  cluster.RunFor(absl::Seconds(30));
  ASSERT_EQ(Cause("a"), "missing-worker");
  cluster.Rejoin("worker-1");
  cluster.workers["worker-1"].no_room = "the job needs 3 GiB";
  cluster.RunFor(absl::Seconds(2));
  const ExplainReply reply = Explain("a");
  ASSERT_EQ(reply.findings_size(), 1) << reply.DebugString();
  EXPECT_EQ(reply.findings(0).cause(), "no-memory");
  EXPECT_EQ(reply.findings(0).subject(), "worker-1");
}

TEST_F(CoordinatorExplainTest, WithoutWorkersSinceTheLastOneLeft) {
  Train(1);
  cluster.RunFor(absl::Seconds(40));
  MiniCluster::MiniWorker& worker = cluster.workers["worker-0"];
  worker.draining = worker.drained = true;
  cluster.Round();
  worker.alive = false;
  cluster.RunFor(absl::Seconds(3));
  const ExplainReply reply = Explain("a");
  ASSERT_EQ(reply.findings_size(), 1) << reply.DebugString();
  EXPECT_EQ(reply.findings(0).cause(), "no-workers");
  EXPECT_NEAR(reply.findings(0).figure(), 3, 0.2);
}

TEST_F(CoordinatorExplainTest, NobodyIsMissedWhoHadNothingToDo) {
  Workers(3);
  cluster.workers["worker-0"].no_room = "the job needs 3 GiB";
  JobSpec spec = MiniCluster::Spec("a", Policy::BSP, 1, 8);
  spec.mutable_batch()->set_micro_batches(2);
  Submit(spec);
  ASSERT_TRUE(cluster.RunUntil(
      [&] { return cluster.Status("a").workers() == 2 && cluster.Status("a").step() > 10; }));
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("goes on without worker-0"));
  EXPECT_EQ(Cause("a"), "");
}

TEST_F(CoordinatorExplainTest, AWorkerThatLeftInGoodOrderIsNotMissed) {
  Train(2);
  MiniCluster::MiniWorker& worker = cluster.workers["worker-1"];
  worker.draining = worker.drained = true;
  cluster.Round();
  worker.alive = false;
  EXPECT_EQ(cluster.Status("a").workers(), 1u);
  cluster.RunFor(absl::Seconds(4));
  EXPECT_EQ(Cause("a"), "");
}

TEST_F(CoordinatorExplainTest, ASilentShard) {
  Train(1);
  cluster.shards["ps-0"].alive = false;
  cluster.RunFor(absl::Seconds(4));
  const ExplainReply reply = Explain("a");
  ASSERT_GE(reply.findings_size(), 1);
  EXPECT_EQ(reply.findings(0).cause(), "missing-shard");
  EXPECT_NEAR(reply.findings(0).figure(), 4, 0.3);
  cluster.RunFor(absl::Seconds(4));
  EXPECT_EQ(Cause("a"), "pending") << "it begins again";
}

TEST_F(CoordinatorExplainTest, ALinkThatIsDownAndSinceWhen) {
  Train(1);
  LinkStatus link;
  link.set_shard(cluster.shards["ps-0"].identity.id());
  link.set_address("ps-0:1");
  link.set_last_error("connection refused");
  cluster.workers["worker-0"].links = {link};
  link.set_shard(77);  // nobody knows it
  cluster.workers["worker-0"].links.push_back(link);
  cluster.RunFor(absl::Seconds(12));
  ExplainReply reply = Explain("a");
  ASSERT_EQ(reply.findings_size(), 1) << reply.DebugString();
  EXPECT_EQ(reply.findings(0).cause(), "broken-link");
  EXPECT_EQ(reply.findings(0).subject(), "worker-0 -> ps-0");
  EXPECT_NEAR(reply.findings(0).figure(), 12, 0.3);
  EXPECT_THAT(reply.findings(0).text(), HasSubstr("connection refused"));
  cluster.workers["worker-0"].links[0].set_connected(true);
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(Cause("a"), "");
}

TEST_F(CoordinatorExplainTest, ACoordinatorThatStartedAgainSaysWhomItHasNotHeardOf) {
  Train(2);
  cluster.workers["worker-1"].alive = false;
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(4));
  const ExplainReply reply = Explain("a");
  ASSERT_GE(reply.findings_size(), 1);
  EXPECT_EQ(reply.findings(0).cause(), "recovering");
  EXPECT_NEAR(reply.findings(0).figure(), 4, 0.3);
  EXPECT_THAT(reply.findings(0).text(), HasSubstr("worker worker-1 (worker-1:1)"));
}

TEST_F(CoordinatorExplainTest, APolicyChangeThatIsHeldUp) {
  Train(2);
  cluster.workers["worker-1"].stuck = true;
  cluster.RunFor(absl::Seconds(1));
  SetPolicyRequest request;
  request.set_name("a");
  request.mutable_policy()->set_kind(Policy::BSP);
  cluster.Ask<event::SetPolicy>(request);
  cluster.RunFor(absl::Seconds(10));
  const ExplainReply reply = Explain("a");
  ASSERT_GE(reply.findings_size(), 1);
  EXPECT_EQ(reply.findings(0).cause(), "policy-change");
  EXPECT_NEAR(reply.findings(0).figure(), 10, 1.1);  // records have whole seconds
  EXPECT_THAT(reply.findings(0).text(), HasSubstr("to bsp"));
}

TEST_F(CoordinatorExplainTest, AJobThatDoesNothing) {
  Train(1);
  cluster.workers["worker-0"].idle_hands = true;
  cluster.RunFor(absl::Seconds(60));
  const ExplainReply reply = Explain("a");
  ASSERT_EQ(reply.findings_size(), 1) << reply.DebugString();
  EXPECT_EQ(reply.findings(0).cause(), "no-progress");
  EXPECT_NEAR(reply.findings(0).figure(), 60, 1);
}

TEST_F(CoordinatorExplainTest, AnEvaluationThatDoesNotEnd) {
  cluster.train_samples = 40;
  Workers(1);
  Submit(Ssp("a", 1, 1));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").epoch() == 2; }));
  cluster.workers["worker-0"].idle_hands = true;
  cluster.RunFor(absl::Seconds(115));
  ASSERT_TRUE(cluster.IsIn("a", RUNNING));
  EXPECT_EQ(Cause("a"), "");
  cluster.RunFor(absl::Seconds(15));
  const ExplainReply reply = Explain("a");
  ASSERT_EQ(reply.findings_size(), 1) << reply.DebugString();
  EXPECT_EQ(reply.findings(0).cause(), "no-progress");
  EXPECT_NEAR(reply.findings(0).figure(), 130, 2);
  EXPECT_THAT(reply.findings(0).text(), HasSubstr("evaluation"));
  cluster.workers["worker-0"].idle_hands = false;
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(Cause("a"), "");
}

TEST_F(CoordinatorExplainTest, ANewJobsCountersBeginAnew) {
  Train(1);
  JobRequest request;
  request.set_name("a");
  cluster.Ask<event::CancelJob>(request);
  EXPECT_EQ(Cause("a"), "");
  cluster.workers["worker-0"].times.Clear();
  Submit(Ssp("b", 1, 1));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("b").step() > 0; }));
  const ExplainReply reply = Explain("b");
  EXPECT_EQ(reply.findings_size(), 0) << reply.DebugString();
}

}  // namespace
}  // namespace starling::coordinator
