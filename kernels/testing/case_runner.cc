#include "kernels/testing/case_runner.h"

#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/geometry.h"
#include "kernels/half.h"

namespace starling {
namespace {

// Parameters lie 4 bytes off alignment, as in the middle of a slice.
constexpr size_t kOffset = sizeof(float);

}  // namespace

Buffer::Buffer(Device& device, Stream& stream, size_t bytes)
    : device_(device), bytes_(bytes), data_(*device.Allocate(bytes)) {
  const std::vector<uint8_t> nan(bytes, 0xff);
  EXPECT_TRUE(device.CopyToDevice(data_, nan.data(), bytes, stream).ok());
  EXPECT_TRUE(stream.Synchronize().ok());
}

int PlaneInputs(const OperatorCase& test_case) {
  int planes = 0;
  for (size_t i = 0; i < test_case.spec.input_shapes.size(); ++i) {
    planes += test_case.spec.input_shapes[i].size() == 4 && !test_case.labels(i) ? 1 : 0;
  }
  return planes;
}

CaseRunner::CaseRunner(Device& device, const OperatorCase& test_case, Formatted formatted,
                       int threads, bool in_place, DataType type)
    : device_(device),
      case_(test_case),
      spec_(test_case.spec),
      stream_(*device.CreateStream()),
      in_place_(in_place),
      identities_(spec_.input_shapes.size()) {
  spec_.type = type;
  spec_.kernel_threads = threads;
  const bool exits = !case_.loss() && (formatted == Formatted::kStored ||
                                       (formatted == Formatted::kAll && type != DataType::kFp32));
  spec_.plain_output = !exits;
  spec_.input_formats.assign(spec_.input_shapes.size(), ValueFormat{});
  for (size_t i = 0; i < identities_.size(); ++i) {
    const Shape& shape = spec_.input_shapes[i];
    const bool convolved =
        formatted == Formatted::kAll || (formatted == Formatted::kFirst && i == 0);
    if (case_.labels(i)) continue;
    if (convolved && shape.size() == 4) {
      identities_[i] = MakeConvolution(shape);
    } else if (formatted == Formatted::kStored && shape.size() > 1) {
      identities_[i] = MakeReshape(shape, ValueFormat(), /*plain_output=*/false);
    } else {
      continue;
    }
    spec_.input_formats[i] = identities_[i].kernel->output_format();
  }
  absl::StatusOr<std::unique_ptr<OperatorKernel>> kernel = device.CreateOperator(spec_);
  EXPECT_TRUE(kernel.ok()) << kernel.status();
  if (!kernel.ok()) return;
  kernel_ = *std::move(kernel);
  if (!exits) return;
  exit_ = MakeReshape(spec_.output_shape, kernel_->output_format(), /*plain_output=*/true);
  EXPECT_EQ(exit_.kernel->input_bytes(0), kernel_->output_bytes());
}

Doubles CaseRunner::Rounded(const Doubles& values) const {
  if (spec_.type == DataType::kFp32) return values;
  const std::vector<float> floats(values.begin(), values.end());
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint16_t> narrow(values.size());
  std::vector<float> wide(values.size());
  Narrow(spec_.type, floats.data(), narrow.data(), count);
  Widen(spec_.type, narrow.data(), wide.data(), count);
  return Doubles(wide.begin(), wide.end());
}

ReferenceArgs CaseRunner::Given(ReferenceArgs args, bool plain) const {
  for (size_t i = 0; i < identities_.size(); ++i) {
    if (identities_[i].kernel || (plain && !case_.labels(i))) {
      args.inputs[i] = Rounded(args.inputs[i]);
    }
  }
  return args;
}

Doubles CaseRunner::GivenGradient(Doubles grad_output, bool plain) const {
  return exit_.kernel || plain ? Rounded(grad_output) : grad_output;
}

BufferPtr CaseRunner::Upload(const Doubles& values, bool integers, size_t offset) {
  std::vector<float> floats(values.begin(), values.end());
  std::vector<int32_t> labels;
  if (integers) labels.assign(values.begin(), values.end());
  BufferPtr buffer = New(values.size() * sizeof(float) + offset);
  const void* from = integers ? static_cast<const void*>(labels.data()) : floats.data();
  EXPECT_TRUE(device_
                  .CopyToDevice(static_cast<char*>(buffer->data()) + offset, from,
                                values.size() * sizeof(float), *stream_)
                  .ok());
  EXPECT_TRUE(stream_->Synchronize().ok());
  return buffer;
}

Doubles CaseRunner::Download(const void* data, int64_t count) {
  std::vector<float> floats(count);
  EXPECT_TRUE(device_.CopyFromDevice(floats.data(), data, count * sizeof(float), *stream_).ok());
  EXPECT_TRUE(stream_->Synchronize().ok());
  return Doubles(floats.begin(), floats.end());
}

CaseRunner::Identity CaseRunner::Complete(const OperatorSpec& spec) {
  Identity identity;
  identity.kernel = *device_.CreateOperator(spec);
  identity.saved = New(identity.kernel->saved_bytes());
  identity.work = New(identity.kernel->workspace_bytes());
  return identity;
}

CaseRunner::Identity CaseRunner::MakeConvolution(const Shape& shape) {
  OperatorSpec spec;
  spec.name = "identity";
  spec.op = "conv2d";
  spec.type = spec_.type;
  spec.kernel_threads = spec_.kernel_threads;
  spec.input_shapes = {shape};
  spec.output_shape = shape;
  spec.parameter_shapes = {{shape[1], shape[1], 1, 1}};
  Identity identity = Complete(spec);
  Doubles weight(shape[1] * shape[1], 0.0);
  for (int64_t c = 0; c < shape[1]; ++c) weight[c * shape[1] + c] = 1;
  identity.weight = Upload(weight, false);
  return identity;
}

CaseRunner::Identity CaseRunner::MakeReshape(const Shape& shape, ValueFormat format,
                                             bool plain_output) {
  OperatorSpec spec;
  spec.name = "identity";
  spec.op = "reshape";
  spec.attributes = {{"shape", std::vector<int64_t>(shape.begin() + 1, shape.end())}};
  spec.type = spec_.type;
  spec.kernel_threads = spec_.kernel_threads;
  spec.input_shapes = {shape};
  spec.input_formats = {format};
  spec.output_shape = shape;
  spec.plain_output = plain_output;
  return Complete(spec);
}

BufferPtr CaseRunner::Through(const Identity& identity, const void* from) {
  BufferPtr to = New(identity.kernel->output_bytes());
  const float* weight =
      identity.weight ? static_cast<const float*>(identity.weight->data()) : nullptr;
  ForwardArgs forward;
  forward.inputs = absl::MakeConstSpan(&from, 1);
  forward.parameters = absl::MakeConstSpan(&weight, identity.weight ? 1 : 0);
  forward.output = to->data();
  forward.saved = identity.saved->data();
  forward.workspace = identity.work->data();
  EXPECT_TRUE(identity.kernel->Forward(forward, *stream_).ok());
  EXPECT_TRUE(stream_->Synchronize().ok());
  return to;
}

BufferPtr CaseRunner::Back(const Identity& identity, const void* gradient) {
  BufferPtr to = New(identity.kernel->input_bytes(0));
  const float* weight =
      identity.weight ? static_cast<const float*>(identity.weight->data()) : nullptr;
  const size_t weights = identity.weight ? 1 : 0;
  void* target = to->data();
  float* no_weight_gradient = nullptr;
  const void* no_input = nullptr;
  BackwardArgs backward;
  backward.inputs = absl::MakeConstSpan(&no_input, 1);
  backward.parameters = absl::MakeConstSpan(&weight, weights);
  backward.grad_output = gradient;
  backward.grad_inputs = absl::MakeConstSpan(&target, 1);
  backward.grad_parameters = absl::MakeConstSpan(&no_weight_gradient, weights);
  backward.saved = identity.saved->data();
  backward.workspace = identity.work->data();
  EXPECT_TRUE(identity.kernel->Backward(backward, *stream_).ok());
  EXPECT_TRUE(stream_->Synchronize().ok());
  return to;
}

void CaseRunner::LoadInputs(const ReferenceArgs& args) {
  inputs_.clear();
  parameters_.clear();
  input_data_.clear();
  parameter_data_.clear();
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    BufferPtr input = Upload(args.inputs[i], case_.classes > 0 && case_.labels(i));
    if (identities_[i].kernel) input = Through(identities_[i], input->data());
    EXPECT_EQ(input->bytes(), kernel_->input_bytes(i));
    inputs_.push_back(std::move(input));
  }
  for (const Doubles& values : args.parameters)
    parameters_.push_back(Upload(values, false, kOffset));
  for (const BufferPtr& input : inputs_) input_data_.push_back(input->data());
  for (const BufferPtr& parameter : parameters_) {
    parameter_data_.push_back(static_cast<const float*>(parameter->data()) + 1);
  }
}

void CaseRunner::SetStepValues(StepValuesIn where, float loss_scale) {
  step_values_.loss_scale = loss_scale;
  step_values_there_ = where == StepValuesIn::kMemory ? New(sizeof(StepValues)) : nullptr;
}

absl::Status CaseRunner::Order(absl::FunctionRef<absl::Status()> call) {
  if (!captures_) return call();
  STARLING_RETURN_IF_ERROR(stream_->BeginCapture());
  const absl::Status called = call();
  const absl::StatusOr<std::unique_ptr<Captured>> captured = stream_->EndCapture();
  STARLING_RETURN_IF_ERROR(called);  // more specific than that the capture failed
  STARLING_RETURN_IF_ERROR(captured.status());
  STARLING_RETURN_IF_ERROR(stream_->Launch(**captured));
  return stream_->Synchronize();
}

void CaseRunner::Forward(const ReferenceArgs& args, void* output) {
  saved_ = New(kernel_->saved_bytes());
  work_ = New(kernel_->workspace_bytes());
  ForwardArgs forward;
  forward.inputs = input_data_;
  forward.parameters = parameter_data_;
  forward.output = output;
  forward.saved = saved_->data();
  forward.workspace = work_->data();
  forward.random = args.random;
  if (step_values_there_ != nullptr) {
    step_values_.step = args.random.step;
    step_values_.micro_batch = args.random.micro_batch;
    forward.values = static_cast<const StepValues*>(step_values_there_->data());
    EXPECT_TRUE(
        device_
            .CopyToDevice(step_values_there_->data(), &step_values_, sizeof(step_values_), *stream_)
            .ok());
    ++forward.random.step;
    ++forward.random.micro_batch;
  }
  const absl::Status status = Order([&] { return kernel_->Forward(forward, *stream_); });
  EXPECT_TRUE(status.ok()) << status;
}

std::vector<float> CaseRunner::RawOutput(const ReferenceArgs& args) {
  spec_.plain_output = false;
  kernel_ = *device_.CreateOperator(spec_);
  LoadInputs(args);
  output_ = New(kernel_->output_bytes());
  Forward(args, output_->data());
  const DataType type = device_.TypeOf(kernel_->output_format());
  const size_t count = output_->bytes() / DataTypeBytes(type);
  std::vector<float> values(count);
  if (type == DataType::kFp32) {
    const Doubles plain = Download(output_->data(), static_cast<int64_t>(count));
    values.assign(plain.begin(), plain.end());
  } else {
    std::vector<uint16_t> narrow(count);
    EXPECT_TRUE(
        device_.CopyFromDevice(narrow.data(), output_->data(), output_->bytes(), *stream_).ok());
    EXPECT_TRUE(stream_->Synchronize().ok());
    Widen(type, narrow.data(), values.data(), static_cast<int64_t>(count));
  }
  return values;
}

Outcome CaseRunner::Run(const ReferenceArgs& args, const Doubles& grad_output) {
  if (!kernel_) return Outcome();  // the constructor's failure
  LoadInputs(args);
  const bool in_place = in_place_ && kernel_->forward_in_place_ok();
  if (in_place) {
    EXPECT_EQ(kernel_->output_bytes(), kernel_->input_bytes(0));
    EXPECT_FALSE(spec_.training && kernel_->backward_reads_input(0)) << "it is gone by then";
  } else {
    output_ = New(kernel_->output_bytes());
  }
  void* const output = in_place ? inputs_[0]->data() : output_->data();
  Forward(args, output);
  Outcome outcome;
  const BufferPtr plain = exit_.kernel ? Through(exit_, output) : nullptr;
  outcome.output = Download(plain ? plain->data() : output, ElementCount(spec_.output_shape));
  if (spec_.training) outcome.gradients = Backward(args, output, grad_output);
  return outcome;
}

ReferenceGradients CaseRunner::Backward(const ReferenceArgs& args, const void* output,
                                        const Doubles& grad_output) {
  BufferPtr dy = Upload(grad_output, false);
  if (exit_.kernel) dy = Back(exit_, dy->data());
  const BufferPtr work = New(kernel_->workspace_bytes());  // nothing in the workspace survives
  std::vector<BufferPtr> input_grads, parameter_grads;
  std::vector<void*> input_targets;
  std::vector<float*> parameter_targets;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    input_grads.push_back(New(kernel_->input_bytes(i)));
    input_targets.push_back(case_.labels(i) ? nullptr : input_grads[i]->data());
    if (!kernel_->backward_reads_input(i)) input_data_[i] = nullptr;
  }
  for (const BufferPtr& parameter : parameters_) {
    parameter_grads.push_back(New(parameter->bytes()));
    parameter_targets.push_back(static_cast<float*>(parameter_grads.back()->data()) + 1);
  }
  const bool in_place = in_place_ && kernel_->backward_in_place_ok() && input_targets[0] != nullptr;
  if (in_place) input_targets[0] = dy->data();
  BackwardArgs backward;
  backward.inputs = input_data_;
  backward.parameters = parameter_data_;
  backward.output = kernel_->backward_reads_output() ? output : nullptr;
  backward.grad_output = case_.loss() ? nullptr : dy->data();
  backward.grad_inputs = absl::MakeConstSpan(input_targets);
  backward.grad_parameters = absl::MakeConstSpan(parameter_targets);
  backward.saved = saved_->data();
  backward.workspace = work->data();
  backward.global_batch = args.global_batch;
  backward.loss_scale = step_values_.loss_scale;
  if (step_values_there_ != nullptr) {
    backward.loss_scale *= 2;
    backward.values = static_cast<const StepValues*>(step_values_there_->data());
  }
  const absl::Status status = Order([&] { return kernel_->Backward(backward, *stream_); });
  EXPECT_TRUE(status.ok()) << status;

  ReferenceGradients gradients;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const int64_t count = static_cast<int64_t>(args.inputs[i].size());
    const Buffer& gradient = in_place && i == 0 ? *dy : *input_grads[i];
    if (input_targets[i] == nullptr) {
      gradients.inputs.emplace_back();
      continue;
    }
    const BufferPtr plain = identities_[i].kernel ? Back(identities_[i], gradient.data()) : nullptr;
    gradients.inputs.push_back(Download(plain ? plain->data() : gradient.data(), count));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    gradients.parameters.push_back(
        Download(parameter_targets[i], static_cast<int64_t>(args.parameters[i].size())));
  }
  return gradients;
}

Doubles GradOutput(const OperatorCase& test_case) {
  return RandomDoubles(ElementCount(test_case.spec.output_shape), 4711);
}

}  // namespace starling
