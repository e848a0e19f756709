// One suite for every device: each operator, forward and backward, against the reference; and the
// reference against finite differences of itself.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "kernels/geometry.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/operator_cases.h"

namespace starling {
namespace {

constexpr double kTolerance = 1e-5;

// Device memory, filled with NaN, so that a hole or a stale read shows.
class Buffer {
 public:
  Buffer(Device& device, Stream& stream, size_t bytes)
      : device_(device), bytes_(bytes), data_(*device.Allocate(bytes)) {
    const std::vector<uint8_t> nan(bytes, 0xff);
    EXPECT_TRUE(device.CopyToDevice(data_, nan.data(), bytes, stream).ok());
    EXPECT_TRUE(stream.Synchronize().ok());
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { device_.Free(data_); }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Device& device_;
  const size_t bytes_;
  void* const data_;
};

using BufferPtr = std::unique_ptr<Buffer>;

double NormRelative(const Doubles& got, const Doubles& expected) {
  if (got.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

// What one operator computed on a device, in plain order.
struct Outcome {
  Doubles output;
  ReferenceGradients gradients;
  friend bool operator==(const Outcome& a, const Outcome& b) {
    return a.output == b.output && a.gradients.inputs == b.gradients.inputs &&
           a.gradients.parameters == b.gradients.parameters;
  }
};

// Runs one case forward and backward. `device_format`: the input first goes through a convolution
// with the identity, so that it has whatever format the device likes, and so does its gradient.
class CaseRunner {
 public:
  CaseRunner(Device& device, const OperatorCase& test_case, bool device_format, int threads)
      : device_(device), case_(test_case), spec_(test_case.spec), stream_(*device.CreateStream()) {
    spec_.kernel_threads = threads;
    spec_.plain_output = true;
    if (device_format) {
      MakeIdentity(threads);
      spec_.input_formats.assign(spec_.input_shapes.size(), ValueFormat{});
      spec_.input_formats[0] = identity_->output_format();
    }
    absl::StatusOr<std::unique_ptr<OperatorKernel>> kernel = device.CreateOperator(spec_);
    EXPECT_TRUE(kernel.ok()) << kernel.status();
    if (kernel.ok()) kernel_ = *std::move(kernel);
  }

  const OperatorKernel* kernel() const { return kernel_.get(); }

  Outcome Run(const ReferenceArgs& args, const Doubles& grad_output);

 private:
  void MakeIdentity(int threads);
  BufferPtr New(size_t bytes) { return std::make_unique<Buffer>(device_, *stream_, bytes); }
  BufferPtr Upload(const Doubles& values, bool integers, size_t offset = 0);
  Doubles Download(const void* data, int64_t count);
  void LoadInputs(const ReferenceArgs& args);
  ReferenceGradients Backward(const ReferenceArgs& args, const Doubles& grad_output);
  Doubles InputGradient(Buffer& gradient, int64_t count);

  Device& device_;
  const OperatorCase& case_;
  OperatorSpec spec_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<OperatorKernel> kernel_, identity_;
  BufferPtr identity_weight_, identity_work_, work_, saved_, output_;
  std::vector<BufferPtr> inputs_, parameters_;
  std::vector<const void*> input_data_;
  std::vector<const float*> parameter_data_;
};

// Parameters lie 4 bytes off alignment, as they do in the middle of a slice.
constexpr size_t kOffset = sizeof(float);

BufferPtr CaseRunner::Upload(const Doubles& values, bool integers, size_t offset) {
  std::vector<float> floats(values.begin(), values.end());
  std::vector<int32_t> labels;
  if (integers) labels.assign(values.begin(), values.end());
  BufferPtr buffer = New(values.size() * sizeof(float) + offset);
  const void* from = integers ? static_cast<const void*>(labels.data()) : floats.data();
  EXPECT_TRUE(device_.CopyToDevice(static_cast<char*>(buffer->data()) + offset, from,
                                   values.size() * sizeof(float), *stream_).ok());
  EXPECT_TRUE(stream_->Synchronize().ok());
  return buffer;
}

Doubles CaseRunner::Download(const void* data, int64_t count) {
  std::vector<float> floats(count);
  EXPECT_TRUE(device_.CopyFromDevice(floats.data(), data, count * sizeof(float), *stream_).ok());
  EXPECT_TRUE(stream_->Synchronize().ok());
  return Doubles(floats.begin(), floats.end());
}

void CaseRunner::MakeIdentity(int threads) {
  const Shape& shape = spec_.input_shapes[0];
  OperatorSpec spec;
  spec.name = "identity";
  spec.op = "conv2d";
  spec.kernel_threads = threads;
  spec.input_shapes = {shape};
  spec.output_shape = shape;
  spec.parameter_shapes = {{shape[1], shape[1], 1, 1}};
  identity_ = *device_.CreateOperator(spec);
  Doubles weight(shape[1] * shape[1], 0.0);
  for (int64_t c = 0; c < shape[1]; ++c) weight[c * shape[1] + c] = 1;
  identity_weight_ = Upload(weight, false);
  identity_work_ = New(identity_->workspace_bytes());
}

void CaseRunner::LoadInputs(const ReferenceArgs& args) {
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    const bool integers = case_.classes > 0 && i + 1 == args.inputs.size();
    BufferPtr plain = Upload(args.inputs[i], integers);
    if (identity_ && i == 0) {
      BufferPtr formatted = New(identity_->output_bytes());
      const void* from = plain->data();
      const float* weight = static_cast<const float*>(identity_weight_->data());
      ForwardArgs forward;
      forward.inputs = absl::MakeConstSpan(&from, 1);
      forward.parameters = absl::MakeConstSpan(&weight, 1);
      forward.output = formatted->data();
      forward.workspace = identity_work_->data();
      EXPECT_TRUE(identity_->Forward(forward, *stream_).ok());
      EXPECT_TRUE(stream_->Synchronize().ok());
      plain = std::move(formatted);
    }
    EXPECT_EQ(plain->bytes(), kernel_->input_bytes(i));
    inputs_.push_back(std::move(plain));
  }
  for (const Doubles& values : args.parameters) parameters_.push_back(Upload(values, false, kOffset));
  for (const BufferPtr& input : inputs_) input_data_.push_back(input->data());
  for (const BufferPtr& parameter : parameters_) {
    parameter_data_.push_back(static_cast<const float*>(parameter->data()) + 1);
  }
}

Outcome CaseRunner::Run(const ReferenceArgs& args, const Doubles& grad_output) {
  if (!kernel_) return Outcome();  // the constructor's failure
  LoadInputs(args);
  output_ = New(kernel_->output_bytes());
  saved_ = New(kernel_->saved_bytes());
  work_ = New(kernel_->workspace_bytes());
  ForwardArgs forward;
  forward.inputs = input_data_;
  forward.parameters = parameter_data_;
  forward.output = output_->data();
  forward.saved = saved_->data();
  forward.workspace = work_->data();
  forward.random = args.random;
  const absl::Status status = kernel_->Forward(forward, *stream_);
  EXPECT_TRUE(status.ok()) << status;
  Outcome outcome;
  outcome.output = Download(output_->data(), ElementCount(spec_.output_shape));
  if (spec_.training) outcome.gradients = Backward(args, grad_output);
  return outcome;
}

ReferenceGradients CaseRunner::Backward(const ReferenceArgs& args, const Doubles& grad_output) {
  const BufferPtr dy = Upload(grad_output, false);
  const BufferPtr work = New(kernel_->workspace_bytes());  // nothing survives in the workspace
  std::vector<BufferPtr> input_grads, parameter_grads;
  std::vector<void*> input_targets;
  std::vector<float*> parameter_targets;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    input_grads.push_back(New(kernel_->input_bytes(i)));
    const bool integers = case_.classes > 0 && i + 1 == inputs_.size();
    input_targets.push_back(integers ? nullptr : input_grads[i]->data());
    if (!kernel_->backward_reads_input(i)) input_data_[i] = nullptr;
  }
  for (const BufferPtr& parameter : parameters_) {
    parameter_grads.push_back(New(parameter->bytes()));
    parameter_targets.push_back(static_cast<float*>(parameter_grads.back()->data()) + 1);
  }
  BackwardArgs backward;
  backward.inputs = input_data_;
  backward.parameters = parameter_data_;
  backward.output = kernel_->backward_reads_output() ? output_->data() : nullptr;
  backward.grad_output = case_.loss() ? nullptr : dy->data();
  backward.grad_inputs = absl::MakeConstSpan(input_targets);
  backward.grad_parameters = absl::MakeConstSpan(parameter_targets);
  backward.saved = saved_->data();
  backward.workspace = work->data();
  backward.global_batch = args.global_batch;
  const absl::Status status = kernel_->Backward(backward, *stream_);
  EXPECT_TRUE(status.ok()) << status;

  ReferenceGradients gradients;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const int64_t count = static_cast<int64_t>(args.inputs[i].size());
    gradients.inputs.push_back(input_targets[i] ? InputGradient(*input_grads[i], i == 0 ? count : 0)
                                                : Doubles());
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    gradients.parameters.push_back(
        Download(parameter_targets[i], static_cast<int64_t>(args.parameters[i].size())));
  }
  return gradients;
}

Doubles CaseRunner::InputGradient(Buffer& gradient, int64_t count) {
  if (!identity_) return Download(gradient.data(), count);
  BufferPtr plain = New(identity_->input_bytes(0));
  const float* weight = static_cast<const float*>(identity_weight_->data());
  void* target = plain->data();
  float* no_weight_gradient = nullptr;
  const void* no_input = nullptr;
  BackwardArgs backward;
  backward.inputs = absl::MakeConstSpan(&no_input, 1);
  backward.parameters = absl::MakeConstSpan(&weight, 1);
  backward.grad_output = gradient.data();
  backward.grad_inputs = absl::MakeConstSpan(&target, 1);
  backward.grad_parameters = absl::MakeConstSpan(&no_weight_gradient, 1);
  backward.workspace = identity_work_->data();
  EXPECT_TRUE(identity_->Backward(backward, *stream_).ok());
  return Download(plain->data(), count);
}

Doubles GradOutput(const OperatorCase& c) {
  return RandomDoubles(ElementCount(c.spec.output_shape), 4711);
}

std::unique_ptr<Device> MakeDevice(const std::string& name) {
  EXPECT_EQ(name, "cpu");
  return *CreateCpuDevice();
}

// ---- The fast operators against the reference ------------------------------------------------

using Parameter = std::tuple<std::string, OperatorCase, bool, int>;

class ConformanceTest : public ::testing::TestWithParam<Parameter> {};

TEST_P(ConformanceTest, AgreesWithTheReference) {
  const auto& [device_name, test_case, device_format, threads] = GetParam();
  if (device_format && test_case.spec.input_shapes[0].size() != 4) {
    return;  // only planes have formats
  }
  const std::unique_ptr<Device> device = MakeDevice(device_name);
  CaseRunner runner(*device, test_case, device_format, threads);
  ASSERT_NE(runner.kernel(), nullptr);
  const ReferenceArgs args = RandomArgs(test_case);
  const Doubles grad_output = GradOutput(test_case);
  const Outcome got = runner.Run(args, grad_output);

  EXPECT_LE(NormRelative(got.output, *ReferenceForward(test_case.spec, args)), kTolerance);
  if (!test_case.spec.training) return;
  const ReferenceGradients expected = *ReferenceBackward(test_case.spec, args, grad_output);
  ASSERT_EQ(got.gradients.inputs.size(), expected.inputs.size());
  ASSERT_EQ(got.gradients.parameters.size(), expected.parameters.size());
  for (size_t i = 0; i < expected.inputs.size(); ++i) {
    EXPECT_LE(NormRelative(got.gradients.inputs[i], expected.inputs[i]), kTolerance) << "input " << i;
  }
  for (size_t i = 0; i < expected.parameters.size(); ++i) {
    EXPECT_LE(NormRelative(got.gradients.parameters[i], expected.parameters[i]), kTolerance)
        << "parameter " << i;
  }
}

std::string Name(const ::testing::TestParamInfo<Parameter>& info) {
  const auto& [device, test_case, device_format, threads] = info.param;
  return absl::StrCat(device, "_", test_case.label, device_format ? "_formatted" : "_plain",
                      "_threads", threads);
}

INSTANTIATE_TEST_SUITE_P(Devices, ConformanceTest,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::ValuesIn(OperatorCases()),
                                            ::testing::Bool(), ::testing::Values(1, 2)),
                         Name);

// ---- The reference against finite differences --------------------------------------------------

class GradientTest : public ::testing::TestWithParam<OperatorCase> {};

// What the analytic gradient is the gradient of: a loss's scaled sum, else <grad_output, output>.
double Objective(const OperatorCase& c, const ReferenceArgs& args, const Doubles& grad_output) {
  const Doubles y = *ReferenceForward(c.spec, args);
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += c.loss() ? y[i] : y[i] * grad_output[i];
  if (!c.loss()) return sum;
  return ResolveGeometry(c.spec)->mean_reduction ? sum / static_cast<double>(args.global_batch) : sum;
}

void CheckGradient(const OperatorCase& c, ReferenceArgs args, const Doubles& grad_output,
                   std::vector<Doubles> ReferenceArgs::* group, size_t index,
                   const Doubles& analytic) {
  constexpr double kStep = 1e-6;
  Doubles numeric, exact;
  const size_t count = analytic.size();
  const size_t stride = count / 12 + 1;  // a dozen elements of each
  for (size_t i = 0; i < count; i += stride) {
    double& x = (args.*group)[index][i];
    const double at = x;
    x = at + kStep;
    const double above = Objective(c, args, grad_output);
    x = at - kStep;
    const double below = Objective(c, args, grad_output);
    x = at;
    numeric.push_back((above - below) / (2 * kStep));
    exact.push_back(analytic[i]);
  }
  double scale = 1e-3;
  for (double e : exact) scale = std::max(scale, std::abs(e));
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(exact[i], numeric[i], 1e-5 * scale) << "element " << i * stride;
  }
}

TEST_P(GradientTest, IsTheFiniteDifference) {
  const OperatorCase& c = GetParam();
  if (!c.spec.training) return;  // has no gradient
  const ReferenceArgs args = RandomArgs(c);
  const Doubles grad_output = GradOutput(c);
  const ReferenceGradients gradients = *ReferenceBackward(c.spec, args, grad_output);
  for (size_t i = 0; i < gradients.inputs.size(); ++i) {
    if (gradients.inputs[i].empty()) continue;  // labels
    SCOPED_TRACE(absl::StrCat("input ", i));
    CheckGradient(c, args, grad_output, &ReferenceArgs::inputs, i, gradients.inputs[i]);
  }
  for (size_t i = 0; i < gradients.parameters.size(); ++i) {
    if (c.spec.op == "batchnorm" && i >= 2) continue;  // statistics: contributions, no gradients
    SCOPED_TRACE(absl::StrCat("parameter ", i));
    CheckGradient(c, args, grad_output, &ReferenceArgs::parameters, i,
                  gradients.parameters[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, GradientTest, ::testing::ValuesIn(OperatorCases()),
                         [](const ::testing::TestParamInfo<OperatorCase>& info) {
                           return info.param.label;
                         });

// ---- Determinism ---------------------------------------------------------------------------------

// Eight lanes at once, on a machine with fewer cores, with one and with two threads each.
TEST(DeterminismTest, ConcurrentLanesComputeTheSameBits) {
  const std::unique_ptr<Device> device = MakeDevice("cpu");
  const std::vector<OperatorCase> cases = OperatorCases();
  auto run = [&](size_t index, int threads) {
    const OperatorCase& c = cases[index];
    return CaseRunner(*device, c, false, threads).Run(RandomArgs(c), GradOutput(c));
  };
  for (int threads : {1, 2}) {
    std::vector<Outcome> alone;
    for (size_t i = 0; i < cases.size(); ++i) alone.push_back(run(i, threads));
    std::vector<std::thread> lanes;
    std::vector<std::string> differences(8);
    for (size_t lane = 0; lane < differences.size(); ++lane) {
      lanes.emplace_back([&, lane] {
        for (size_t step = 0; step < cases.size(); ++step) {
          const size_t i = (step + lane * 7) % cases.size();
          if (!(run(i, threads) == alone[i])) differences[lane] += " " + cases[i].label;
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
    for (const std::string& difference : differences) EXPECT_EQ(difference, "") << threads;
  }
}

// ---- What a device refuses -------------------------------------------------------------------------

TEST(RefusalTest, NamesWhatItLacks) {
  const std::unique_ptr<Device> device = MakeDevice("cpu");
  OperatorSpec spec = OperatorCases()[0].spec;
  spec.type = DataType::kBf16;
  absl::Status status = device->CreateOperator(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("fp32, not in bf16"), std::string::npos) << status;

  spec = OperatorCases()[0].spec;
  spec.input_formats = {ValueFormat{77}};
  EXPECT_EQ(device->CreateOperator(spec).status().code(), absl::StatusCode::kInvalidArgument);

  spec = OperatorCases()[0].spec;
  spec.training = false;
  const std::unique_ptr<Stream> stream = *device->CreateStream();
  EXPECT_EQ((*device->CreateOperator(spec))->Backward(BackwardArgs(), *stream).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace starling
