#include "worker/executor/replay.h"

#include "absl/time/clock.h"
#include "common/graph/builders.h"
#include "gtest/gtest.h"
#include "worker/executor/executor.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

TEST(ReplayedComputeTest, IsReadAsTwoTimes) {
  const auto compute = ParseReplayedCompute("0.02s,40ms");
  ASSERT_TRUE(compute.ok()) << compute.status();
  EXPECT_EQ(compute->forward, absl::Milliseconds(20));
  EXPECT_EQ(compute->backward, absl::Milliseconds(40));
  for (const char* wrong : {"", "1s", "1s,", "1s,2s,3s", "-1s,1s", "1,2", "1s,inf", "2h,0"}) {
    const auto refused = ParseReplayedCompute(wrong);
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << wrong;
    EXPECT_NE(refused.status().message().find("0.02s,0.04s"), absl::string_view::npos);
  }
}

TEST(ReplayWaitTest, CatchesUpWithWhatWaitsTookTooLong) {
  ReplayWait wait;
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 200; ++i)
    EXPECT_TRUE(wait.For(absl::Microseconds(500), [] { return false; }));
  // The sum is short by at most what the last wait may be shortened by. (It may be longer: machines
  // stall.)
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(99));
}

TEST(ReplayWaitTest, EndsWhenItIsStopped) {
  ReplayWait wait;
  int asked = 0;
  EXPECT_FALSE(wait.For(absl::Hours(1), [&] { return ++asked == 2; }));
  EXPECT_EQ(asked, 2);
}

class ReplayTest : public testing::Test {
 protected:
  static ExecutorOptions Options() {
    ExecutorOptions options;
    options.global_batch = 16;
    options.micro_batches = 4;
    options.train_samples = {4};
    options.evaluate_samples = {4};
    options.lanes = 2;
    options.replay = ReplayedCompute{absl::Milliseconds(10), absl::Milliseconds(20)};
    return options;
  }
  Samples32 samples_ = MakeSamples(16, 64, 3, 2);
  MemoryBatches batches_{&samples_, 4};
  TestModel model_ = MakeTestModel(BuildMlp({{64}, 3}, {.hidden = {64, 64}}).value(), Options());
};

TEST_F(ReplayTest, LanesWaitAndTheGradientsAreZero) {
  const absl::Time begin = absl::Now();
  const TrainOutput output = TrainOnce(model_, batches_, {TrainRange(0, 4)});
  EXPECT_GE(absl::Now() - begin,
            absl::Milliseconds(59));  // two micro-batches of 30 ms on each of two lanes
  EXPECT_EQ(output.gradients[0], std::vector<float>(model_.layout.elements, 0.0f));
  EXPECT_EQ(output.result.ranges[0].samples, 16u);
  EXPECT_EQ(output.result.ranges[0].loss_sum, 16.0);
  // The same spans as for real computation.
  int forward = 0, backward = 0;
  for (const TraceSpan& span : model_.spans->Read(0).spans) {
    forward += span.category == SpanCategory::kForward;
    backward += span.category == SpanCategory::kBackward;
  }
  EXPECT_EQ(forward, 4 * static_cast<int>(model_.resolved.nodes.size()));
  EXPECT_GT(backward, 0);
}

TEST_F(ReplayTest, EvaluationIsReplayedToo) {
  OpenGate gate;
  UnitResult result;
  const std::vector<WorkRange> ranges = {{WorkPurpose::kEvaluate, 0, 0, 4}};
  const absl::Time begin = absl::Now();
  ASSERT_TRUE(model_.executor->Evaluate({ranges}, batches_, gate, &result).ok());
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(19));
  EXPECT_EQ(result.ranges[0].samples, 16u);
}

TEST_F(ReplayTest, AnAbandonedUnitStopsWaiting) {
  ExecutorOptions options = Options();
  options.replay->forward = absl::Hours(1);
  TestModel slow = MakeTestModel(BuildMlp({{64}, 3}, {.hidden = {64, 64}}).value(), options);
  std::atomic<bool> cancelled{true};
  const std::vector<WorkRange> ranges = {TrainRange(0, 4)};
  OpenGate gate;
  CollectingSink sink(&slow.layout);
  UnitResult result;
  const Unit unit{ranges, 0, 0, &cancelled};
  EXPECT_TRUE(absl::IsCancelled(slow.executor->Train(unit, batches_, gate, sink, &result)));
}

}  // namespace
}  // namespace starling
