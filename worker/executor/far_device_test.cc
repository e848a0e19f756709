// The executor on a device whose memory the host cannot reach, and which runs behind the host, against
// the same device without either: the same bits.
#include <cstring>
#include <string>
#include <vector>

#include "common/graph/builders.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/far_device.h"
#include "worker/executor/executor.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

constexpr int64_t kClasses = 3;

LayerDescription Conv(const std::string& name) {
  return {"conv2d",
          name,
          {{"out_channels", int64_t{8}}, {"kernel", int64_t{3}}, {"padding", int64_t{1}}}};
}

// Statistics, random numbers, a value of two readers, and parameters of two users.
Graph Net() {
  const std::vector<LayerDescription> layers = {
      Conv("stem"),
      {"batchnorm", "norm", {}},
      {"relu", "relu1", {}},
      Conv("branch"),
      {"add", "sum", {}, {"branch", "relu1"}},
      {"maxpool2d", "pool", {{"kernel", int64_t{2}}}},
      {"dropout", "drop", {{"rate", 0.25}}},
      {"flatten", "flat", {}},
      {"linear", "hidden", {{"out_features", int64_t{24}}}},
      {"gelu", "gelu1", {}},
      {"linear", "mix", {{"out_features", int64_t{24}}}},
      {"linear", "again", {{"out_features", int64_t{24}}}, {"mix"}, "mix"},
      {"linear", "fc", {}},
  };
  return BuildLayers({{2, 8, 8}, kClasses}, layers).value();
}

struct Case {
  DataType type;
  int lanes;
};

class FarDeviceTest : public ::testing::TestWithParam<Case> {
 protected:
  static TestModel Model(bool far) {
    ExecutorOptions options;
    options.global_batch = 32;
    options.micro_batches = 8;
    options.train_samples = {4, 2};
    options.evaluate_samples = {4, 2};
    options.lanes = GetParam().lanes;
    options.seed = 5;
    options.type = GetParam().type;
    std::unique_ptr<Device> device = CreateCpuDevice().value();
    if (far) device = MakeFarDevice(std::move(device));
    return MakeTestModel(Net(), options, Optimizer::default_instance(), std::move(device));
  }
};

// Steps that change the parameters, whole and in ranges of other sizes, one of them a single
// micro-batch, one empty at its end; then an evaluation.
TEST_P(FarDeviceTest, ComputesTheSameBits) {
  const Samples32 samples = MakeSamples(26, 2 * 8 * 8, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel near = Model(/*far=*/false), far = Model(/*far=*/true);
  ASSERT_FALSE(far.device->host_reaches_memory());
  const std::vector<std::vector<WorkRange>> units = {
      {TrainRange(0, 8)},
      {TrainRange(6, 2), TrainRange(0, 4), TrainRange(5, 1), TrainRange(4, 1)},
      {TrainRange(0, 1)},
      {TrainRange(0, 8)},
  };
  for (size_t step = 0; step < units.size(); ++step) {
    SCOPED_TRACE(step);
    const TrainOutput expected = TrainOnce(near, batches, units[step], step);
    const TrainOutput got = TrainOnce(far, batches, units[step], step);
    ASSERT_EQ(got.gradients, expected.gradients);
    for (size_t r = 0; r < units[step].size(); ++r) {
      EXPECT_EQ(got.result.ranges[r].loss_sum, expected.result.ranges[r].loss_sum);
      EXPECT_EQ(got.result.ranges[r].correct, expected.result.ranges[r].correct);
      for (size_t i = 0; i < near.live().size(); ++i) {
        near.live()[i] -= 0.1f * expected.gradients[r][i];
        far.live()[i] -= 0.1f * expected.gradients[r][i];
      }
    }
  }
  double losses[2];
  for (TestModel* model : {&near, &far}) {
    std::memcpy(model->executor->snapshot_parameters(), model->executor->live_parameters(),
                model->layout.elements * sizeof(float));
    OpenGate gate;
    UnitResult result;
    const std::vector<WorkRange> ranges = {{WorkPurpose::kEvaluate, 0, 0, 8}};
    ASSERT_TRUE(model->executor->Evaluate({ranges}, batches, gate, &result).ok());
    losses[model == &far] = result.ranges[0].loss_sum;
  }
  EXPECT_EQ(losses[1], losses[0]);
}

INSTANTIATE_TEST_SUITE_P(Cases, FarDeviceTest,
                         ::testing::Values(Case{DataType::kFp32, 1}, Case{DataType::kFp32, 3},
                                           Case{DataType::kBf16, 2}, Case{DataType::kFp16, 2}),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return std::string(DataTypeName(info.param.type)) + "_lanes" +
                                  std::to_string(info.param.lanes);
                         });

}  // namespace
}  // namespace starling
