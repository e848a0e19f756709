// What can be read of a job's values.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class ValuesTest : public CoordinatorTest {
 protected:
  ValuesTest() {
    cluster.train_samples = 400;
    cluster.AddShard("ps-0");
    cluster.AddShard("ps-1");
    Workers(1);
  }

  void Set(const std::string& job, Policy::Kind kind) {
    SetPolicyRequest request;
    request.set_name(job);
    request.mutable_policy()->set_kind(kind);
    const CallReply reply = cluster.Ask<event::SetPolicy>(request);
    ASSERT_TRUE(std::holds_alternative<SetPolicyReply>(reply)) << std::get<absl::Status>(reply);
  }
  void RunTo(uint64_t step) {
    ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("a").step() >= step; }));
  }
  void Cancel() {
    ASSERT_TRUE(AskJob<event::CancelJob>("a").ok());
    ASSERT_TRUE(cluster.RunUntil([&] { return Known(); }));
  }

  // "newest", or the version; "?": not known yet; or how they were lost
  std::vector<std::string> Read() {
    std::vector<std::string> out;
    const JobReply reply = cluster.Get("a");
    for (const PartitionValues& values : reply.values()) {
      EXPECT_EQ(values.partition(), out.size());
      out.push_back(!values.gone().empty() ? values.gone()
                    : values.unknown()     ? "?"
                    : values.has_version() ? std::to_string(values.version())
                                           : "newest");
    }
    return out;
  }
  bool Known() {
    const std::vector<std::string> read = Read();
    return std::find(read.begin(), read.end(), "?") == read.end();
  }
  uint32_t ShardOf(int partition) { return cluster.Get("a").views(partition).primary(); }
};

TEST_F(ValuesTest, ThePolicyAtTheEndDecidesAndNotTheJobFiles) {
  Submit(MiniCluster::Spec("a", Policy::BSP, 1, 1));
  RunTo(10);
  EXPECT_EQ(Read().size(), 2u);
  Set("a", Policy::ASYNC);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ASSERT_TRUE(cluster.RunUntil([&] { return Known(); }));
  EXPECT_THAT(Read(), Each("newest"));
  EXPECT_FALSE(cluster.Status("a").has_sealed_steps());
}

TEST_F(ValuesTest, AJobThatCameToBspIsReadAtOneVersion) {
  Submit(Ssp("a", 1, 1));
  RunTo(10);
  Set("a", Policy::BSP);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ASSERT_TRUE(cluster.RunUntil([&] { return Known(); }));
  EXPECT_THAT(Read(), Each("200"));
  EXPECT_EQ(cluster.Status("a").sealed_steps(), 200u);
}

TEST_F(ValuesTest, TheLeastVersionIsReadWhereOneShardIsAStepAhead) {
  cluster.shards["ps-1"].sealed_ahead = 1;
  Submit(MiniCluster::Spec("a", Policy::BSP, 1, 1));
  RunTo(10);
  Cancel();
  size_t steps = 0;  // a step that was under way when the job was cancelled counts
  for (const auto& [epoch, items] : cluster.covered[cluster.Status("a").uid()])
    steps += items.size();
  EXPECT_THAT(Read(), Each(std::to_string(steps)));
}

// Shards report several times a second, and a step may take less.
TEST_F(ValuesTest, ACancelledJobsStepsAreThoseOfTheLastReports) {
  Submit(MiniCluster::Spec("a", Policy::BSP, 1, 1));
  RunTo(10);
  ASSERT_TRUE(AskJob<event::CancelJob>("a").ok());
  const uint64_t before = cluster.Status("a").step();
  auto& items = cluster.covered[cluster.Status("a").uid()][0];
  for (uint64_t item = 0; item < before + 5; ++item) items.insert({item, 1});
  ASSERT_TRUE(cluster.RunUntil([&] { return Known(); }));
  EXPECT_GE(cluster.Status("a").step(), before + 5);  // one more may have been under way
  EXPECT_EQ(cluster.Status("a").step(), cluster.Status("a").sealed_steps());
}

// Its last values wait for backups that do not answer; what is reported meanwhile is shown.
TEST_F(ValuesTest, ACancelledJobsStepsAreNoOlderThanWhatShardsTell) {
  JobSpec spec = MiniCluster::Spec("a", Policy::BSP, 1, 1);
  spec.set_durability(DURABILITY_AUTO);
  Submit(spec);
  RunTo(10);
  for (auto& [name, shard] : cluster.shards) shard.cut = {"ps-0:1", "ps-1:1"};
  ASSERT_TRUE(AskJob<event::CancelJob>("a").ok());
  const uint64_t before = cluster.Status("a").step();
  auto& items = cluster.covered[cluster.Status("a").uid()][0];
  for (uint64_t item = 0; item < before + 5; ++item) items.insert({item, 1});
  cluster.RunFor(absl::Seconds(1));
  EXPECT_FALSE(Known());
  EXPECT_GE(cluster.Status("a").step(), before + 5);
}

// When the job ends, one shard knows that the next policy is in force and the other does not.
TEST_F(ValuesTest, EachPartitionIsReadByItsOwnPolicyWhereTheJobEndsInMidChange) {
  Submit(Ssp("a", 1, 1));
  RunTo(10);
  MiniCluster::MiniShard& late = cluster.shards["ps-1"];
  late.deaf = true;
  Set("a", Policy::BSP);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.shards["ps-0"].bsp[1]; }));
  Cancel();
  const std::vector<std::string> read = Read();
  for (int partition = 0; partition < 2; ++partition) {
    if (ShardOf(partition) == late.identity.id()) {
      EXPECT_EQ(read[partition], "newest");
    } else {
      EXPECT_NE(read[partition], "newest");
    }
  }
}

TEST_F(ValuesTest, WhatIsReadOfAnEndedJobIsDurable) {
  Submit(MiniCluster::Spec("a", Policy::BSP, 1, 1));
  RunTo(10);
  ASSERT_TRUE(AskJob<event::CancelJob>("a").ok());
  EXPECT_THAT(Read(), Each("?")) << "pushes may still be on their way";
  cluster.StartCoordinator();
  EXPECT_THAT(Read(), Each("?"));
  ASSERT_TRUE(cluster.RunUntil([&] { return Known(); }));
  const std::vector<std::string> read = Read();
  for (auto& [name, shard] : cluster.shards) shard.alive = false;
  cluster.StartCoordinator();
  EXPECT_EQ(Read(), read) << "no shard has reported yet";
  EXPECT_TRUE(cluster.Status("a").has_sealed_steps());
}

TEST_F(ValuesTest, ValuesThatWereLostWithAShardNameIt) {
  Submit(MiniCluster::Spec("a", Policy::BSP, 1, 1));
  RunTo(10);
  Cancel();
  const std::vector<std::string> before = Read();
  cluster.shards["ps-1"].alive = false;
  cluster.RunFor(absl::Seconds(7));
  const auto check = [&] {
    for (int partition = 0; partition < 2; ++partition) {
      if (ShardOf(partition) == cluster.shards["ps-1"].identity.id()) {
        EXPECT_THAT(Read()[partition], AllOf(HasSubstr("lost with shard ps-1 at "),
                                             HasSubstr("(no report for 5.0 s) at 2023-")));
      } else {
        EXPECT_EQ(Read()[partition], before[partition]);
      }
    }
  };
  check();
  cluster.StartCoordinator();
  check();
}

TEST_F(ValuesTest, AShardThatIsLostInMidJobTakesItsPartWithIt) {
  Submit(Once(Ssp("a", 1, 1)));
  RunTo(10);
  cluster.shards["ps-0"].alive = false;
  ASSERT_TRUE(Ends("a", FAILED));
  ASSERT_TRUE(cluster.RunUntil([&] { return Known(); }));
  EXPECT_THAT(Read(), ::testing::UnorderedElementsAre("newest", HasSubstr("lost with shard ps-0")));
}

// Values are settled when the last shard that has not sent its last report is lost.
TEST_F(ValuesTest, AShardThatIsLostBeforeItToldTheLastHoldsNobodyUp) {
  Submit(Ssp("a", 1, 1));
  RunTo(10);
  ASSERT_TRUE(AskJob<event::CancelJob>("a").ok());
  cluster.shards["ps-1"].alive = false;
  cluster.RunFor(absl::Seconds(2));
  EXPECT_FALSE(Known());
  EXPECT_EQ(cluster.shards["ps-0"].ended, 0);
  cluster.RunFor(absl::Seconds(8));
  EXPECT_TRUE(Known());
  EXPECT_EQ(cluster.shards["ps-0"].ended, 1);
}

TEST_F(ValuesTest, AShardThatCouldNotHoldAPartitionNeverHadItsValues) {
  cluster.shards["ps-1"].refuses = "no memory for it";
  Submit(Ssp("a", 1, 1));
  ASSERT_TRUE(Ends("a", FAILED));
  ASSERT_TRUE(cluster.RunUntil([&] { return Known(); }));
  EXPECT_THAT(Read(), ::testing::Contains("shard ps-1 never had them: no memory for it"));
}

class OutputTest : public ValuesTest {
 protected:
  static JobSpec WithOutput(const std::string& name,
                            const std::string& output = "runs/a.safetensors") {
    JobSpec spec = Ssp(name, 1, 1);
    spec.set_output(output);
    return spec;
  }
  OutputStatus Output() { return cluster.Status("a").output(); }
};

TEST_F(OutputTest, IsOrderedWhenAllValuesAreKnownAndAgainAfterARestartUntilItIsWritten) {
  Submit(WithOutput("a"));
  EXPECT_EQ(Output().state(), OutputStatus::WAITING);
  EXPECT_EQ(Output().path(), "/outputs/runs/a.safetensors");
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  ASSERT_TRUE(cluster.RunUntil([&] { return Output().state() == OutputStatus::WRITING; }));
  ASSERT_EQ(cluster.outputs.size(), 1u);
  EXPECT_EQ(cluster.outputs[0].spec().output(), "runs/a.safetensors");
  ASSERT_EQ(cluster.outputs[0].values_size(), 2);
  for (const PartitionValues& values : cluster.outputs[0].values()) EXPECT_FALSE(values.unknown());
  cluster.StartCoordinator();
  ASSERT_EQ(cluster.outputs.size(), 2u);
  cluster.Step(event::OutputWritten{1, 4096});
  EXPECT_EQ(Output().state(), OutputStatus::WRITTEN);
  EXPECT_EQ(Output().bytes(), 4096u);
  cluster.StartCoordinator();
  EXPECT_EQ(cluster.outputs.size(), 2u);
  EXPECT_EQ(Output().state(), OutputStatus::WRITTEN);
}

TEST_F(OutputTest, IsReadFromTheOtherCopyWhenAShardDies) {
  JobSpec spec = WithOutput("a");
  spec.set_durability(DURABILITY_REPLICATED);
  cluster.train_samples = 4000;
  Submit(spec);
  ASSERT_TRUE(cluster.RunUntil([&] { return Output().state() == OutputStatus::WRITING; }));
  const JobStatus status = cluster.Status("a");
  ASSERT_EQ(status.partitions_whole(), status.partitions());
  cluster.shards.begin()->second.alive = false;
  cluster.RunFor(absl::Seconds(7));
  ASSERT_EQ(cluster.outputs.size(), 1u);
  cluster.Step(event::OutputWritten{1, absl::UnavailableError("no stream to the shard")});
  ASSERT_EQ(cluster.outputs.size(), 2u) << Output().error();
  EXPECT_GT(cluster.outputs[1].views(0).number() + cluster.outputs[1].views(1).number(), 4u);
  cluster.Step(event::OutputWritten{1, absl::UnavailableError("no stream to the shard")});
  EXPECT_EQ(Output().state(), OutputStatus::FAILED);
}

TEST_F(OutputTest, AFailureIsShownAndTheJobStaysSucceeded) {
  Submit(WithOutput("a"));
  ASSERT_TRUE(cluster.RunUntil([&] { return Output().state() == OutputStatus::WRITING; }));
  cluster.Step(event::OutputWritten{1, absl::InternalError("No space left on device")});
  EXPECT_EQ(Output().state(), OutputStatus::FAILED);
  EXPECT_EQ(Output().error(), "No space left on device");
  EXPECT_TRUE(cluster.IsIn("a", SUCCEEDED));
  EXPECT_THAT(Read(), Each("newest"));
}

TEST_F(OutputTest, AJobIsNotDeletedBeforeItsFileIsThere) {
  CoordinatorOptions keep_none;
  keep_none.output_root = "/outputs";
  keep_none.keep_ended_jobs = 0;
  cluster.UseOptions(keep_none);
  cluster.StartCoordinator();
  Submit(WithOutput("a"));
  ASSERT_TRUE(cluster.RunUntil([&] { return Output().state() == OutputStatus::WRITING; }));
  cluster.RunFor(absl::Seconds(2));
  EXPECT_THAT(std::string(AskJob<event::DeleteJob>("a").message()),
              HasSubstr("the values of job a are being written to /outputs/runs/a.safetensors"));
  cluster.Step(event::OutputWritten{1, 4096});
  cluster.RunFor(absl::Seconds(2));
  EXPECT_THAT(std::string(AskJob<event::GetJob>("a").message()), HasSubstr("--keep-ended-jobs 0"));
}

TEST_F(OutputTest, ADryRunMayNameTheFileOfTheJobThatItWouldReplace) {
  Submit(WithOutput("a"));
  EXPECT_TRUE(
      std::holds_alternative<SubmitReply>(cluster.Submit(WithOutput("a"), 0, /*dry_run=*/true)));
  EXPECT_TRUE(
      std::holds_alternative<absl::Status>(cluster.Submit(WithOutput("b"), 0, /*dry_run=*/true)));
}

TEST_F(OutputTest, OnlyTheValuesOfAJobThatSucceededAreWritten) {
  Submit(WithOutput("a"));
  RunTo(10);
  Cancel();
  EXPECT_EQ(Output().state(), OutputStatus::FAILED);
  EXPECT_THAT(Output().error(), HasSubstr("the job is CANCELLED"));
  EXPECT_TRUE(cluster.outputs.empty());
  cluster.StartCoordinator();
  Submit(WithOutput("b"));  // whose file it is now
  cluster.StartCoordinator();
  EXPECT_THAT(std::string(SubmitError(WithOutput("c")).message()), HasSubstr("is job b's"));
}

TEST_F(OutputTest, IsRefusedWithoutARootAndWhereAnotherJobHasTheName) {
  Submit(WithOutput("a"));
  EXPECT_THAT(
      std::string(SubmitError(WithOutput("b")).message()),
      HasSubstr("output: runs/a.safetensors is job a's: name another file, or delete that job"));
  cluster.UseOptions({});
  cluster.StartCoordinator();
  EXPECT_THAT(std::string(SubmitError(WithOutput("b", "b.safetensors")).message()),
              HasSubstr("start it with --output-root DIR"));
  for (const char* bad : {"/etc/x.safetensors", "../x.safetensors", "a/../../x.safetensors",
                          "x.txt", "a//x.safetensors", ".safetensors", "a\nb.safetensors"}) {
    EXPECT_THAT(std::string(SubmitError(WithOutput("b", bad)).message()),
                HasSubstr("output: expected the name of a .safetensors file"))
        << bad;
  }
}

}  // namespace
}  // namespace starling::coordinator
