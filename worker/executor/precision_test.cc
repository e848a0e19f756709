// The executor with two-byte values.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "common/graph/builders.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/half.h"
#include "worker/executor/executor.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

constexpr int64_t kClasses = 3;
constexpr int64_t kSamples = 8;  // per micro-batch

LayerDescription Conv(const std::string& name, int64_t channels) {
  return {"conv2d",
          name,
          {{"out_channels", channels}, {"kernel", int64_t{3}}, {"padding", int64_t{1}}}};
}

// A value that two operators read, and parameters that two share: their gradients are added.
Graph ResidualNet() {
  const std::vector<LayerDescription> layers = {
      Conv("stem", 8),
      {"relu", "relu1", {}},
      Conv("branch", 8),
      {"add", "sum", {}, {"branch", "relu1"}},
      {"maxpool2d", "pool", {{"kernel", int64_t{2}}}},
      {"flatten", "flat", {}},
      {"linear", "hidden", {{"out_features", int64_t{24}}}},
      {"gelu", "gelu1", {}},
      {"linear", "mix", {{"out_features", int64_t{24}}}},
      {"linear", "again", {{"out_features", int64_t{24}}}, {"mix"}, "mix"},
      {"linear", "fc", {}},
  };
  return BuildLayers({{2, 8, 8}, kClasses}, layers).value();
}

ExecutorOptions Options(DataType type, int lanes) {
  ExecutorOptions options;
  options.global_batch = 4 * kSamples;
  options.micro_batches = 4;
  options.train_samples = {kSamples};
  options.lanes = lanes;
  options.type = type;
  return options;
}

TrainOutput Train(DataType type, int lanes) {
  const Samples32 samples = MakeSamples(4 * kSamples, 2 * 8 * 8, kClasses, 3);
  MemoryBatches batches(&samples, kSamples);
  TestModel model = MakeTestModel(ResidualNet(), Options(type, lanes));
  return TrainOnce(model, batches, {TrainRange(0, 4)});
}

class PrecisionTest : public ::testing::TestWithParam<DataType> {};

TEST_P(PrecisionTest, GradientsAreThoseOfFp32ButForRoundings) {
  const TrainOutput wide = Train(DataType::kFp32, 1), narrow = Train(GetParam(), 1);
  const std::vector<float>& expected = wide.gradients[0];
  ASSERT_EQ(narrow.gradients[0].size(), expected.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(narrow.gradients[0][i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  const double relative = std::sqrt(error / norm);
  EXPECT_LT(relative, 32 * UnitRoundoff(GetParam()));
  EXPECT_GT(relative, UnitRoundoff(GetParam()) / 32) << "nothing was rounded";
  const double loss = wide.result.ranges[0].loss_sum;
  EXPECT_NEAR(narrow.result.ranges[0].loss_sum, loss, 32 * UnitRoundoff(GetParam()) * loss);
}

TEST_P(PrecisionTest, BitsDoNotDependOnLanes) {
  EXPECT_EQ(Train(GetParam(), 1).gradients, Train(GetParam(), 2).gradients);
}

TEST_P(PrecisionTest, ActivationsTakeLessMemory) {
  std::vector<LayerDescription> layers;
  for (int i = 0; i < 16; ++i) {
    layers.push_back(Conv("conv" + std::to_string(i), 16));
    layers.push_back({"gelu", "gelu" + std::to_string(i), {}});
  }
  layers.push_back({"flatten", "flat", {}});
  layers.push_back({"linear", "fc", {}});
  const Graph graph = BuildLayers({{2, 16, 16}, kClasses}, layers).value();
  const auto planned = [&](DataType type) {
    return static_cast<double>(MakeTestModel(graph, Options(type, 1)).executor->planned_bytes());
  };
  EXPECT_LT(planned(GetParam()), 0.8 * planned(DataType::kFp32));
}

INSTANTIATE_TEST_SUITE_P(Types, PrecisionTest, ::testing::Values(DataType::kBf16, DataType::kFp16),
                         [](const ::testing::TestParamInfo<DataType>& info) {
                           return std::string(DataTypeName(info.param));
                         });

// Computes on the CPU and records the requested operators.
class RecordingDevice : public Device {
 public:
  explicit RecordingDevice(std::vector<OperatorSpec>* specs)
      : specs_(specs), inner_(*CreateCpuDevice()) {}

  std::string name() const override { return "recording"; }
  std::string instruction_set() const override { return inner_->instruction_set(); }
  bool host_reaches_memory() const override { return true; }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return inner_->Allocate(bytes); }
  void Free(void* memory) override { inner_->Free(memory); }
  absl::StatusOr<MemoryBytes> Memory() override { return inner_->Memory(); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override { return inner_->CreateStream(); }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return inner_->CreateEvent(); }
  absl::Status CountCorrect(const Judgement& judgement, const void* logits, const void* labels,
                            uint32_t* correct, Stream& stream) override {
    return inner_->CountCorrect(judgement, logits, labels, correct, stream);
  }
  absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream& stream) override {
    return inner_->CopyToDevice(to, from, bytes, stream);
  }
  absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream& stream) override {
    return inner_->CopyFromDevice(to, from, bytes, stream);
  }
  absl::Status Copy(void* to, const void* from, size_t bytes, Stream& stream) override {
    return inner_->Copy(to, from, bytes, stream);
  }
  absl::Status Zero(void* to, size_t bytes, Stream& stream) override {
    return inner_->Zero(to, bytes, stream);
  }
  absl::Status Add(float* to, const float* from, size_t elements, Stream& stream) override {
    return inner_->Add(to, from, elements, stream);
  }
  DataType TypeOf(ValueFormat format) const override { return inner_->TypeOf(format); }
  absl::Status AddValues(void* to, const void* from, size_t bytes, ValueFormat format,
                         Stream& stream) override {
    return inner_->AddValues(to, from, bytes, format, stream);
  }
  absl::StatusOr<std::unique_ptr<OperatorKernel>> CreateOperator(
      const OperatorSpec& spec) override {
    specs_->push_back(spec);
    return inner_->CreateOperator(spec);
  }

 private:
  std::vector<OperatorSpec>* const specs_;
  const std::unique_ptr<Device> inner_;
};

TEST(Tf32Test, IsAllowedToEveryOperatorOfTrainingAndEvaluation) {
  for (const bool tf32 : {false, true}) {
    ExecutorOptions options = Options(DataType::kFp32, 1);
    options.evaluate_samples = {kSamples};
    options.tf32 = tf32;
    std::vector<OperatorSpec> specs;
    MakeTestModel(ResidualNet(), options, Optimizer::default_instance(),
                  std::make_unique<RecordingDevice>(&specs));
    size_t training = 0;
    for (const OperatorSpec& spec : specs) {
      EXPECT_EQ(spec.tf32, tf32) << spec.name;
      training += spec.training ? 1 : 0;
    }
    EXPECT_GT(training, 0u);
    EXPECT_GT(specs.size(), training);
  }
}

// fp16 overflows beyond 65,504, where bf16 and fp32 do not.
TEST(OverflowTest, ALossThatIsNotFiniteIsSaidInFp16AndStopsNothing) {
  const Samples32 samples = MakeSamples(4 * kSamples, 2 * 8 * 8, kClasses, 3);
  MemoryBatches batches(&samples, kSamples);
  for (DataType type : {DataType::kFp32, DataType::kBf16, DataType::kFp16}) {
    SCOPED_TRACE(DataTypeName(type));
    TestModel model = MakeTestModel(ResidualNet(), Options(type, 1));
    for (size_t p = 0; p < model.resolved.parameters.size(); ++p) {
      if (model.resolved.parameters[p].name != "stem.weight") continue;
      const ParameterPlace& place = model.layout.parameters[p];
      for (uint64_t i = 0; i < place.elements; ++i) {
        model.executor->live_parameters()[place.flat_begin + i] = 60'000;
      }
    }
    OpenGate gate;
    CollectingSink sink(&model.layout);
    UnitResult result;
    const std::vector<WorkRange> ranges = {TrainRange(0, 4)};
    ASSERT_TRUE(model.executor->Train({ranges}, batches, gate, sink, &result).ok());
    // Training skips a step that overflows and lowers the loss scale, which does not help here,
    // until the job stops.
    EXPECT_TRUE(result.finite);
    EXPECT_EQ(sink.overflowed, type == DataType::kFp16);
    EXPECT_TRUE(sink.complete(0));
    EXPECT_EQ(result.ranges[0].samples, type == DataType::kFp16 ? 0u : uint64_t{4 * kSamples});
    EXPECT_TRUE(std::isfinite(result.ranges[0].loss_sum));
  }
}

// Only fp16 scales; the result is the gradient times the scale, except for statistics.
TEST(ScaledLossTest, MultipliesTheGradientsOfWhatIsTrained) {
  class Scaled : public OpenGate {
   public:
    explicit Scaled(double scale) : scale_(scale) {}
    double LossScale() override { return scale_; }

   private:
    const double scale_;
  };
  const Samples32 samples = MakeSamples(4 * kSamples, 2 * 8 * 8, kClasses, 3);
  MemoryBatches batches(&samples, kSamples);
  const auto gradient = [&](DataType type, double scale) {
    TestModel model = MakeTestModel(ResidualNet(), Options(type, 1));
    model.Initialise(5);
    Scaled gate(scale);
    CollectingSink sink(&model.layout);
    UnitResult result;
    const std::vector<WorkRange> ranges = {TrainRange(0, 4)};
    EXPECT_TRUE(model.executor->Train({ranges}, batches, gate, sink, &result).ok());
    EXPECT_FALSE(sink.overflowed);
    std::vector<float> flat = sink.gradient(0);
    for (const Slice& slice : model.layout.slices) {
      if (slice.kind != TRAINABLE) continue;
      for (uint64_t i = 0; i < slice.elements; ++i)
        flat[slice.flat_begin + i] /= static_cast<float>(scale);
    }
    return flat;
  };
  const std::vector<float> wide = gradient(DataType::kFp32, 1);
  const std::vector<float> plain = gradient(DataType::kFp16, 1),
                           scaled = gradient(DataType::kFp16, 1024);
  const auto error = [&](const std::vector<float>& narrow) {
    double sum = 0, norm = 0;
    for (size_t i = 0; i < wide.size(); ++i) {
      sum += std::pow(narrow[i] - wide[i], 2);
      norm += std::pow(wide[i], 2);
    }
    return std::sqrt(sum / norm);
  };
  EXPECT_LT(error(scaled), 32 * UnitRoundoff(DataType::kFp16));
  EXPECT_LE(error(scaled), 1.5 * error(plain));
  EXPECT_NE(scaled, plain) << "small numbers are rounded less";
}

}  // namespace
}  // namespace starling
