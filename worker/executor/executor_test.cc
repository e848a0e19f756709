// What the executor promises about numbers: sums, bits, losses, learning.
#include "worker/executor/executor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/graph/backward.h"
#include "common/graph/builders.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/executor/program.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

constexpr int64_t kClasses = 3;

Graph ConvNet(bool dropout) {
  std::vector<LayerDescription> layers = {
      {"conv2d", "conv", {{"out_channels", int64_t{4}}, {"kernel", int64_t{3}}}},
      {"batchnorm", "norm", {}},
      {"relu", "relu", {}},
      {"maxpool2d", "pool", {{"kernel", int64_t{2}}}},
      {"dropout", "drop", {{"rate", 0.25}}},
      {"flatten", "flat", {}},
      {"linear", "fc", {}},
  };
  if (!dropout) layers.erase(layers.begin() + 4);
  return BuildLayers({{1, 8, 8}, kClasses}, layers).value();
}

// B = 32 in 8 micro-batches of 4; with 26 samples one is short and one empty.
ExecutorOptions ConvOptions(int lanes) {
  ExecutorOptions options;
  options.global_batch = 32;
  options.micro_batches = 8;
  options.train_samples = {4, 2};
  options.lanes = lanes;
  options.seed = 5;
  return options;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> Plus(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sum(a);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

// Sums along the tree of the leaves' gradients, each computed on its own.
std::vector<float> TreeSum(const std::vector<std::vector<float>>& leaves, size_t first,
                           size_t count) {
  if (count == 1) return leaves[first];
  return Plus(TreeSum(leaves, first, count / 2), TreeSum(leaves, first + count / 2, count / 2));
}

TEST(ExecutorTest, BitsDependNeitherOnLanesNorOnHowTheRangeIsSplit) {
  const Samples32 samples = MakeSamples(26, 64, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel one = MakeTestModel(ConvNet(true), ConvOptions(1));
  std::vector<std::vector<float>> leaves;
  for (uint64_t id = 0; id < 8; ++id) {
    leaves.push_back(TrainOnce(one, batches, {TrainRange(id, 1)}, 3).gradients[0]);
  }
  const std::vector<float> expected = TreeSum(leaves, 0, 8);
  for (int lanes : {1, 2, 3, 5}) {
    TestModel model = MakeTestModel(ConvNet(true), ConvOptions(lanes));
    for (int round = 0; round < 5; ++round) {  // different schedules
      const TrainOutput whole = TrainOnce(model, batches, {TrainRange(0, 8)}, 3);
      EXPECT_TRUE(SameBits(whole.gradients[0], expected)) << lanes << " lanes";
      EXPECT_EQ(whole.result.ranges[0].samples, 26u);
      const TrainOutput split =
          TrainOnce(model, batches,
                    {TrainRange(6, 2), TrainRange(0, 4), TrainRange(5, 1), TrainRange(4, 1)}, 3);
      const std::vector<float> right =
          Plus(Plus(split.gradients[3], split.gradients[2]), split.gradients[0]);
      EXPECT_TRUE(SameBits(Plus(split.gradients[1], right), expected)) << lanes << " lanes";
    }
  }
}

TEST(ExecutorTest, TheOrderOfTheSumMattersToTheBits) {
  // Otherwise the test above would pass in any order.
  const Samples32 samples = MakeSamples(32, 64, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel model = MakeTestModel(ConvNet(true), ConvOptions(2));
  std::vector<float> in_line = TrainOnce(model, batches, {TrainRange(0, 1)}).gradients[0];
  for (uint64_t id = 1; id < 8; ++id) {
    in_line = Plus(in_line, TrainOnce(model, batches, {TrainRange(id, 1)}).gradients[0]);
  }
  EXPECT_FALSE(SameBits(in_line, TrainOnce(model, batches, {TrainRange(0, 8)}).gradients[0]));
}

TEST(ExecutorTest, DropoutDrawsByStepAndMicroBatch) {
  const Samples32 samples = MakeSamples(32, 64, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel model = MakeTestModel(ConvNet(true), ConvOptions(1));
  const std::vector<float> a = TrainOnce(model, batches, {TrainRange(0, 1)}, 1).gradients[0];
  EXPECT_TRUE(SameBits(a, TrainOnce(model, batches, {TrainRange(0, 1)}, 1).gradients[0]));
  EXPECT_FALSE(SameBits(a, TrainOnce(model, batches, {TrainRange(0, 1)}, 2).gradients[0]));
}

TEST(ExecutorTest, AnEmptyMicroBatchIsPositiveZero) {
  const Samples32 samples = MakeSamples(4, 64, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel model = MakeTestModel(ConvNet(true), ConvOptions(2));
  const TrainOutput empty = TrainOnce(model, batches, {TrainRange(4, 4)});
  EXPECT_TRUE(SameBits(empty.gradients[0], std::vector<float>(model.layout.elements, 0.0f)));
  EXPECT_EQ(empty.result.ranges[0].samples, 0u);
  EXPECT_EQ(empty.result.ranges[0].loss_sum, 0);
}

TEST(ExecutorTest, GradientsAgreeWithFiniteDifferences) {
  const Samples32 samples = MakeSamples(16, 64, kClasses, 4);
  MemoryBatches batches(&samples, 8);
  ExecutorOptions options = ConvOptions(2);
  options.global_batch = 16;
  options.micro_batches = 2;
  options.train_samples = {8};
  TestModel model = MakeTestModel(ConvNet(false), options);
  const std::vector<WorkRange> range = {TrainRange(0, 2)};
  const std::vector<float> gradient = TrainOnce(model, batches, range).gradients[0];
  auto loss = [&] { return TrainOnce(model, batches, range).result.ranges[0].loss_sum / 16; };
  int checked = 0;
  for (size_t p = 0; p < model.resolved.parameters.size(); ++p) {
    if (model.resolved.parameters[p].kind != TRAINABLE) continue;
    const ParameterPlace& place = model.layout.parameters[p];
    double error = 0, norm = 0;
    for (uint64_t i = place.flat_begin; i < place.flat_begin + place.elements; ++i) {
      // Small enough that no ReLU or maximum changes sides; the noise of fp32 losses averages out.
      constexpr float kStep = 2e-3f;
      const float value = model.live()[i];
      model.live()[i] = value + kStep;
      const double up = loss();
      model.live()[i] = value - kStep;
      const double down = loss();
      model.live()[i] = value;
      const double difference = (up - down) / (2 * kStep) - gradient[i];
      error += difference * difference;
      norm += gradient[i] * gradient[i];
      ++checked;
    }
    // A convolution's bias before batch norm has no effect: its gradient is only rounding.
    EXPECT_LT(std::sqrt(error), 0.02 * std::sqrt(norm) + 2e-3) << model.resolved.parameters[p].name;
  }
  EXPECT_EQ(checked, 36 + 4 + 4 + 4 + 3 * 36 + 3);
}

TEST(ExecutorTest, StatisticsAreWeightedBySamples) {
  // As the first layer, batch norm has the data's statistics.
  const std::vector<LayerDescription> layers = {{"batchnorm", "norm", {}}, {"linear", "fc", {}}};
  const Samples32 samples = MakeSamples(6, 2, kClasses, 4);
  MemoryBatches batches(&samples, 4);
  ExecutorOptions options = ConvOptions(1);
  options.global_batch = 8;
  options.micro_batches = 2;
  TestModel model = MakeTestModel(BuildLayers({{2}, kClasses}, layers).value(), options);
  const TrainOutput output = TrainOnce(model, batches, {TrainRange(0, 2)});
  const ParameterPlace& mean = model.layout.parameters[2];
  for (int c = 0; c < 2; ++c) {
    double sum = 0;
    for (int i = 0; i < 6; ++i) sum += samples.inputs[2 * i + c];
    EXPECT_NEAR(output.gradients[0][mean.flat_begin + c], sum / 8, 1e-6);  // over B, not 6
  }
}

TEST(ExecutorTest, CounterAddsOneToEachRow) {
  Samples32 samples;
  samples.elements = 0;  // the labels hold the row indices
  for (int i = 0; i < 16; ++i) samples.labels.push_back(15 - i);
  MemoryBatches batches(&samples, 4);
  ExecutorOptions options = ConvOptions(2);
  options.global_batch = 8;
  options.micro_batches = 2;
  options.train_samples = {4};
  TestModel model = MakeTestModel(BuildCounter(16).value(), options);
  const std::vector<float> gradient = TrainOnce(model, batches, {TrainRange(2, 2)}).gradients[0];
  for (int row = 0; row < 16; ++row) EXPECT_EQ(gradient[row], row < 8 ? -1.0f : 0.0f) << row;
}

TEST(ExecutorTest, AnMlpLearns) {
  constexpr int kSteps = 150;
  const Samples32 samples = MakeSamples(64, 10, kClasses, 9);
  MemoryBatches batches(&samples, 16);
  ExecutorOptions options;
  options.global_batch = 64;
  options.micro_batches = 4;
  options.train_samples = {16};
  options.evaluate_samples = {16};
  options.lanes = 2;
  TestModel model = MakeTestModel(BuildMlp({{10}, kClasses}, {.hidden = {32}}).value(), options);
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    const TrainOutput output = TrainOnce(model, batches, {TrainRange(0, 4)}, step);
    for (size_t i = 0; i < model.layout.elements; ++i) {
      model.live()[i] -= 0.5f * output.gradients[0][i];
    }
    last = output.result.ranges[0].loss_sum / 64;
    if (step == 0) first = last;
  }
  EXPECT_GT(first, 0.9);
  EXPECT_LT(last, 0.1);
  // Evaluation reads only the snapshot.
  OpenGate gate;
  UnitResult result;
  const std::vector<WorkRange> ranges = {{WorkPurpose::kEvaluate, 0, 0, 4}};
  for (bool copied : {false, true}) {
    if (copied) {
      std::memcpy(model.executor->snapshot_parameters(), model.executor->live_parameters(),
                  model.layout.elements * sizeof(float));
    }
    ASSERT_TRUE(model.executor->Evaluate({ranges}, batches, gate, &result).ok());
    EXPECT_EQ(result.ranges[0].samples, 64u);
    if (copied) {
      EXPECT_GE(result.ranges[0].correct, 62u);
      EXPECT_NEAR(result.ranges[0].loss_sum / 64, last, 0.01);
    } else {
      EXPECT_NEAR(result.ranges[0].loss_sum / 64, std::log(3.0), 1e-6);  // all parameters are 0
    }
  }
}

// fc1, fc2 and fc3, for micro-batches of 16 samples.
TestModel ThreeLayers(int micro_batches, int lanes) {
  ExecutorOptions options;
  options.global_batch = 16 * micro_batches;
  options.micro_batches = micro_batches;
  options.train_samples = {16};
  options.lanes = lanes;
  return MakeTestModel(BuildMlp({{10}, kClasses}, {.hidden = {32, 8}}).value(), options);
}

TEST(ExecutorTest, ANonFiniteLossNamesTheFirstBadLayer) {
  const Samples32 samples = MakeSamples(64, 10, kClasses, 9);
  MemoryBatches batches(&samples, 16);
  TestModel model = ThreeLayers(/*micro_batches=*/4, /*lanes=*/2);
  const size_t weight = model.layout.parameters[2].flat_begin;  // fc2.weight
  model.live()[weight] = std::numeric_limits<float>::infinity();
  OpenGate gate;
  CollectingSink sink(&model.layout);
  UnitResult result;
  const std::vector<WorkRange> ranges = {TrainRange(0, 4)};
  ASSERT_TRUE(model.executor->Train({ranges}, batches, gate, sink, &result).ok());
  EXPECT_FALSE(result.finite);
  EXPECT_EQ(result.bad_layer, "fc2 (linear)");
  EXPECT_EQ(sink.ready_slices(), 0u);
  // The executor still works.
  model.Initialise(1);
  EXPECT_TRUE(TrainOnce(model, batches, ranges).result.finite);
}

// A batch may take minutes; each operator counts as progress.
TEST(ExecutorTest, TellsThatItGetsOnWithinABatch) {
  const Samples32 samples = MakeSamples(16, 10, kClasses, 9);
  MemoryBatches batches(&samples, 16);
  TestModel model = ThreeLayers(/*micro_batches=*/1, /*lanes=*/1);
  OpenGate gate;
  CollectingSink sink(&model.layout);
  UnitResult result;
  const std::vector<WorkRange> ranges = {TrainRange(0, 1)};
  std::atomic<int> moved = 0;
  Unit unit;
  unit.ranges = ranges;
  unit.moved = [&] { ++moved; };
  ASSERT_TRUE(model.executor->Train(unit, batches, gate, sink, &result).ok());
  EXPECT_GE(moved, 2) << "forward and backward, where a device runs each as one graph";
}

std::vector<LayerDescription> TwiceUsed() {
  return {{"linear", "a", {{"out_features", int64_t{6}}}},          {"relu", "r1", {}},
          {"linear", "b", {{"out_features", int64_t{6}}}, {}, "a"}, {"relu", "r2", {}},
          {"linear", "c", {{"out_features", int64_t{6}}}, {}, "a"}, {"linear", "fc", {}}};
}

TEST(ExecutorTest, ASharedParametersGradientIsTheSumOverItsUsers) {
  const Samples32 samples = MakeSamples(26, 6, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel model =
      MakeTestModel(BuildLayers({{6}, kClasses}, TwiceUsed()).value(), ConvOptions(1));
  ASSERT_EQ(model.resolved.parameters[0].users.size(), 3u);
  const std::vector<float> gradient = TrainOnce(model, batches, {TrainRange(0, 8)}).gradients[0];

  // The same net with three parameters of the same values.
  std::vector<LayerDescription> apart = TwiceUsed();
  for (LayerDescription& layer : apart) layer.parameters_of.clear();
  TestModel other = MakeTestModel(BuildLayers({{6}, kClasses}, apart).value(), ConvOptions(1));
  const auto place = [](const TestModel& m, int p) { return m.layout.parameters[p].flat_begin; };
  const int from[] = {0, 1, 0, 1, 0, 1, 2, 3};
  for (int p = 0; p < 8; ++p) {
    std::copy_n(model.live().data() + place(model, from[p]), other.layout.parameters[p].elements,
                other.live().data() + place(other, p));
  }
  const std::vector<float> parts = TrainOnce(other, batches, {TrainRange(0, 8)}).gradients[0];
  for (int p = 0; p < 2; ++p) {
    for (uint64_t i = 0; i < model.layout.parameters[p].elements; ++i) {
      const double sum = double{parts[place(other, p) + i]} + parts[place(other, p + 2) + i] +
                         parts[place(other, p + 4) + i];
      EXPECT_NEAR(gradient[place(model, p) + i], sum, 1e-6) << p << " " << i;
    }
  }
}

TEST(ExecutorTest, ASharedParametersBitsDependOnNothingEither) {
  const Samples32 samples = MakeSamples(26, 6, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  std::vector<float> first;
  for (int lanes : {1, 3}) {
    TestModel model =
        MakeTestModel(BuildLayers({{6}, kClasses}, TwiceUsed()).value(), ConvOptions(lanes));
    for (int round = 0; round < 3; ++round) {
      const std::vector<float> gradient =
          TrainOnce(model, batches, {TrainRange(0, 8)}).gradients[0];
      if (first.empty()) first = gradient;
      EXPECT_TRUE(SameBits(gradient, first)) << lanes << " lanes";
    }
  }
}

TEST(ExecutorTest, FrozenParametersGetNoGradientAndNothingBeforeThemIsComputed) {
  const Samples32 samples = MakeSamples(26, 64, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel free = MakeTestModel(ConvNet(false), ConvOptions(1));
  const std::vector<float> all = TrainOnce(free, batches, {TrainRange(0, 8)}).gradients[0];
  for (int frozen : {2, 6}) {  // conv; conv and norm
    Graph graph = ConvNet(false);
    for (int p = 0; p < frozen; ++p) graph.mutable_parameters(p)->set_kind(FROZEN);
    TestModel model = MakeTestModel(graph, ConvOptions(2));
    for (size_t p = 0; p < model.resolved.parameters.size(); ++p) {
      std::copy_n(free.live().data() + free.layout.parameters[p].flat_begin,
                  free.layout.parameters[p].elements,
                  model.live().data() + model.layout.parameters[p].flat_begin);
    }
    // The harness's sink fails if a frozen slice is pushed.
    const std::vector<float> gradient = TrainOnce(model, batches, {TrainRange(0, 8)}).gradients[0];
    const size_t steps = DeriveBackward(Differentiable(model.resolved),
                                        static_cast<int>(model.resolved.values.size()))
                             .size();
    EXPECT_EQ(steps, frozen == 2 ? 6u : 2u);  // down to norm; down to fc
    for (size_t p = frozen; frozen == 2 && p < model.resolved.parameters.size(); ++p) {
      for (uint64_t i = 0; i < model.layout.parameters[p].elements; ++i) {
        EXPECT_EQ(gradient[model.layout.parameters[p].flat_begin + i],
                  all[free.layout.parameters[p].flat_begin + i]);
      }
    }
  }
}

TEST(ExecutorTest, ABatchNormWithFrozenStatisticsNormalisesWithThem) {
  const std::vector<LayerDescription> layers = {{"batchnorm", "norm", {}}, {"linear", "fc", {}}};
  Graph graph = BuildLayers({{2}, kClasses}, layers).value();
  for (int p = 0; p < 4; ++p) graph.mutable_parameters(p)->set_kind(FROZEN);
  ExecutorOptions options = ConvOptions(1);
  options.global_batch = 4;
  options.micro_batches = 1;
  options.train_samples = options.evaluate_samples = {4};
  TestModel model = MakeTestModel(graph, options);
  model.live()[model.layout.parameters[2].flat_begin] = 0.5f;  // a mean
  const Samples32 samples = MakeSamples(4, 2, kClasses, 4);
  MemoryBatches batches(&samples, 4);
  const double trained = TrainOnce(model, batches, {TrainRange(0, 1)}).result.ranges[0].loss_sum;
  std::memcpy(model.executor->snapshot_parameters(), model.executor->live_parameters(),
              model.layout.elements * sizeof(float));
  OpenGate gate;
  UnitResult result;
  const std::vector<WorkRange> ranges = {{WorkPurpose::kEvaluate, 0, 0, 1}};
  ASSERT_TRUE(model.executor->Evaluate({ranges}, batches, gate, &result).ok());
  EXPECT_EQ(result.ranges[0].loss_sum, trained);
}

TEST(ExecutorTest, ABatchThatDoesNotFitIsRefusedWithOneThatWould) {
  ExecutorOptions options = ConvOptions(2);
  options.global_batch = 2048;
  options.train_samples = {256};
  TestModel model = MakeTestModel(ConvNet(true), options);
  const size_t planned = model.executor->planned_bytes();
  auto create = [&] {
    return Executor::Create(model.resolved, model.layout, options, model.device.get(),
                            model.spans.get())
        .status();
  };
  options.bytes_max = planned;
  EXPECT_TRUE(create().ok());
  options.bytes_max = planned / 3;
  const absl::Status refused = create();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(testing::HasSubstr("batch.global 2048 in micro-batches of 256"),
                             testing::HasSubstr("batch.global 512 with batch.microBatches 8")));
  options.train_samples = {64};  // what it said
  options.global_batch = 512;
  EXPECT_TRUE(create().ok());
  options.bytes_max = 1;
  EXPECT_THAT(std::string(create().message()), testing::HasSubstr("not even"));
}

TEST(KernelSpecTest, SaysWhetherTheDeviceMayTimeAlgorithms) {
  const ResolvedGraph graph = Validate(ConvNet(false)).value();
  for (bool tune : {false, true}) {
    ProgramOptions options;
    options.tune = tune;
    EXPECT_EQ(KernelSpec(graph, 0, options).tune, tune);
  }
}

TEST(ExecutorTest, UnannouncedSizesAreRefused) {
  const Samples32 samples = MakeSamples(32, 64, kClasses, 2);
  MemoryBatches batches(&samples, 3);
  TestModel model = MakeTestModel(ConvNet(true), ConvOptions(1));
  OpenGate gate;
  CollectingSink sink(&model.layout);
  UnitResult result;
  const std::vector<WorkRange> ranges = {TrainRange(0, 1)};
  EXPECT_THAT(std::string(model.executor->Train({ranges}, batches, gate, sink, &result).message()),
              testing::HasSubstr("a micro-batch of 4 or 2 samples, got 3"));
}

}  // namespace
}  // namespace starling
