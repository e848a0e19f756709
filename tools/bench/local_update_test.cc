// A step on the device equals the shards' step.
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/graph/builders.h"
#include "common/trace/span_ring.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/fake_discrete_device.h"
#include "server/shard/apply/init.h"
#include "tools/bench/device_local_update.h"
#include "worker/executor/local_run.h"

namespace starling {
namespace {

constexpr int64_t kSamples = 8, kClasses = 4;

JobSpec Spec(const std::string& optimizer) {
  JobSpec spec;
  // Has statistics, whose update is different, and enough layers for several slices.
  *spec.mutable_model() =
      BuildLayers({{2, 6, 6}, kClasses},
                  {{"conv2d", "conv", {{"out_channels", int64_t{6}}, {"kernel", int64_t{3}}}},
                   {"batchnorm", "norm", {}},
                   {"relu", "relu", {}},
                   {"flatten", "flat", {}},
                   {"linear", "fc", {}}})
          .value();
  Optimizer& of = *spec.mutable_optimizer();
  of.set_weight_decay(0.05);
  if (optimizer == "sgd") of.mutable_sgd();
  if (optimizer == "momentum") of.mutable_momentum()->set_momentum(0.9);
  if (optimizer == "lamb" || optimizer == "adam" || optimizer == "adamw") {
    Optimizer::Adam& adam = *(optimizer == "adam"    ? of.mutable_adam()
                              : optimizer == "adamw" ? of.mutable_adamw()
                                                     : of.mutable_lamb());
    adam.set_beta1(0.9);
    adam.set_beta2(0.95);
    adam.set_epsilon(1e-8);
  }
  spec.mutable_batch()->set_global(kSamples);
  spec.mutable_batch()->set_micro_batches(1);
  spec.set_seed(3);
  return spec;
}

ExecutorOptions Options() {
  ExecutorOptions options;
  options.global_batch = kSamples;
  options.train_samples = {kSamples};
  return options;
}

// The losses of some steps, each with its step's values. `far`: on a fake discrete device.
std::vector<double> Losses(const JobSpec& spec, bool far) {
  std::unique_ptr<Device> device = CreateCpuDevice().value();
  if (far) device = MakeFakeDiscreteDevice(std::move(device));
  const ResolvedGraph graph = Validate(spec.model()).value();
  const Layout layout = MakeLayout(spec).value();
  SpanRing spans;
  const auto executor = Executor::Create(graph, layout, Options(), device.get(), &spans).value();
  FirstValues first(spec.seed(), spec.model());
  for (const Slice& slice : layout.slices) {
    EXPECT_TRUE(first.Make(slice, executor->live_parameters() + slice.flat_begin).ok());
  }
  const auto batch = FixedBatches::Create({.samples = kSamples,
                                           .input_elements = graph.values[kInputValue].elements,
                                           .label_elements = 1},
                                          device.get())
                         .value();
  std::mt19937 random(1);
  for (int64_t i = 0; i < kSamples * graph.values[kInputValue].elements; ++i) {
    static_cast<float*>(batch->inputs())[i] = std::normal_distribution<float>()(random);
  }
  for (int64_t i = 0; i < kSamples; ++i) {
    static_cast<int32_t*>(batch->labels())[i] = static_cast<int32_t>(i % kClasses);
  }
  const std::unique_ptr<LocalStep> update =
      MakeLocalStep(spec, layout, device.get(), executor->live_parameters()).value();
  EXPECT_EQ(update->device_update() != nullptr, far);
  OpenGate gate;
  std::vector<double> losses;
  for (int64_t step = 0; step < 6; ++step) {
    const WorkRange range{WorkPurpose::kTrain, 0, static_cast<uint64_t>(step), 1};
    update->BeginStep(step, 0.02);
    UnitResult result;
    const absl::Status status =
        executor->Train(LocalUnit(range, step, *update), *batch, gate, *update, &result);
    EXPECT_TRUE(status.ok()) << status;
    losses.push_back(result.ranges.empty() ? NAN : result.ranges[0].loss_sum);
  }
  return losses;
}

TEST(LocalUpdateTest, TheDevicesStepIsTheShards) {
  for (const char* optimizer : {"sgd", "momentum", "adam", "adamw"}) {
    SCOPED_TRACE(optimizer);
    const std::vector<double> host = Losses(Spec(optimizer), /*far=*/false);
    const std::vector<double> device = Losses(Spec(optimizer), /*far=*/true);
    EXPECT_LT(host.back(), 0.9 * host.front());  // it learns, so the steps matter
    for (size_t i = 0; i < host.size(); ++i) {
      EXPECT_NEAR(device[i], host[i], 1e-3 * host[i]) << "step " << i;
    }
  }
}

TEST(LocalUpdateTest, RefusesWhatTheDeviceDoesNotKnow) {
  const auto device = MakeFakeDiscreteDevice(CreateCpuDevice().value());
  const JobSpec spec = Spec("lamb");
  const Layout layout = MakeLayout(spec).value();
  EXPECT_EQ(MakeLocalStep(spec, layout, device.get(), nullptr).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(LocalUpdateTest, AUnitOnTheDeviceHasOneMicroBatch) {
  const auto device = MakeFakeDiscreteDevice(CreateCpuDevice().value());
  const JobSpec spec = Spec("sgd");
  const ResolvedGraph graph = Validate(spec.model()).value();
  const Layout layout = MakeLayout(spec).value();
  ExecutorOptions options = Options();
  options.micro_batches = 2;
  SpanRing spans;
  const auto executor = Executor::Create(graph, layout, options, device.get(), &spans).value();
  const auto batch = FixedBatches::Create({}, device.get()).value();
  const auto update = MakeLocalStep(spec, layout, device.get(), nullptr).value();
  OpenGate gate;
  UnitResult result;
  const WorkRange range{WorkPurpose::kTrain, 0, 0, 2};
  EXPECT_EQ(executor->Train(LocalUnit(range, 0, *update), *batch, gate, *update, &result).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FixedBatchesTest, GivesTheSameSamplesInTurns) {
  const auto device = CreateCpuDevice().value();
  const auto batches =
      FixedBatches::Create(
          {.micro_batches = 2, .samples = 3, .input_elements = 5, .label_elements = 1},
          device.get())
          .value();
  const WorkRange range{WorkPurpose::kTrain, 0, 10, 4};
  const auto* const inputs = static_cast<const float*>(batches->inputs());
  const auto* const labels = static_cast<const int32_t*>(batches->labels());
  for (uint64_t i = 0; i < 4; ++i) {
    const MicroBatch got = batches->Get(range, 10 + i).value();
    EXPECT_EQ(got.samples, 3);
    EXPECT_EQ(got.inputs, inputs + i % 2 * 15);
    EXPECT_EQ(got.labels, labels + i % 2 * 3);
  }
}

}  // namespace
}  // namespace starling
