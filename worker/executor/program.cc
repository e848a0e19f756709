#include "worker/executor/program.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

Shape WithBatch(int64_t samples, const Dims& dims) {
  Shape shape = {samples};
  shape.insert(shape.end(), dims.begin(), dims.end());
  return shape;
}

std::vector<int64_t> Pair(const std::array<int64_t, 2>& pair) { return {pair[0], pair[1]}; }

AttributeMap KernelAttributes(const ResolvedNode& node) {
  const OperatorAttributes& a = node.attributes;
  switch (node.kind) {
    case OpKind::kConv2d:
      return {{"stride", Pair(a.stride)}, {"padding", Pair(a.padding)}};
    case OpKind::kMaxPool2d:
    case OpKind::kAvgPool2d:
      return {{"kernel", Pair(a.kernel)}, {"stride", Pair(a.stride)}, {"padding", Pair(a.padding)}};
    case OpKind::kBatchNorm:
      return {{"epsilon", a.epsilon}};
    case OpKind::kDropout:
      return {{"rate", a.rate}};
    case OpKind::kSoftmaxCrossEntropy:
      return {{"reduction", std::string("mean")}};
    case OpKind::kNegativeSum:
      return {{"reduction", std::string("sum")}};
    case OpKind::kLinear:
    case OpKind::kRelu:
    case OpKind::kFlatten:
    case OpKind::kGatherRows:
      return {};
  }
  return {};
}

template <typename T>
T* At(char* arena, const Block& block) {
  return block.bytes == 0 ? nullptr : reinterpret_cast<T*>(arena + block.offset);
}

}  // namespace

OperatorSpec KernelSpec(const ResolvedGraph& graph, int node, const ProgramOptions& options) {
  const ResolvedNode& resolved = graph.nodes[node];
  OperatorSpec spec;
  spec.name = resolved.name;
  spec.op = Rule(resolved.kind).name;
  spec.attributes = KernelAttributes(resolved);
  spec.training = options.training;
  spec.kernel_threads = options.kernel_threads;
  for (int input : resolved.inputs) {
    spec.input_shapes.push_back(WithBatch(options.samples, graph.values[input].shape));
  }
  for (int parameter : resolved.parameters) {
    spec.parameter_shapes.push_back(graph.parameters[parameter].shape);
  }
  // A table of scalars is, to the kernel, one of rows of one element.
  if (resolved.kind == OpKind::kGatherRows) spec.parameter_shapes[0].push_back(1);
  spec.output_shape = WithBatch(options.samples, graph.values[resolved.output].shape);
  spec.plain_output = resolved.output == graph.logits || Rule(resolved.kind).loss;
  return spec;
}

absl::StatusOr<std::unique_ptr<Program>> Program::Create(const ResolvedGraph& graph, Device* device,
                                                         const ProgramOptions& options) {
  std::unique_ptr<Program> program(new Program(graph, device, options));
  STARLING_RETURN_IF_ERROR(program->CreateKernels());
  program->Plan();
  return program;
}

absl::Status Program::CreateKernels() {
  std::vector<ValueFormat> formats(graph_.values.size());
  value_bytes_.resize(graph_.values.size());
  value_bytes_[kInputValue] =
      sizeof(float) * options_.samples * graph_.values[kInputValue].elements;
  value_bytes_[kLabelValue] = sizeof(int32_t) * options_.samples;
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    const ResolvedNode& node = graph_.nodes[i];
    OperatorSpec spec = KernelSpec(graph_, static_cast<int>(i), options_);
    for (int input : node.inputs) spec.input_formats.push_back(formats[input]);
    STARLING_ASSIGN_OR_RETURN(std::unique_ptr<OperatorKernel> kernel,
                              device_->CreateOperator(spec));
    formats[node.output] = kernel->output_format();
    value_bytes_[node.output] = kernel->output_bytes();
    kernels_.push_back(std::move(kernel));
  }
  return absl::OkStatus();
}

void Program::Plan() {
  PlanRequest request;
  request.value_bytes = value_bytes_;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const OperatorKernel& kernel = *kernels_[i];
    PlanNode node;
    node.inputs = graph_.nodes[i].inputs;
    node.output = graph_.nodes[i].output;
    node.saved_bytes = kernel.saved_bytes();
    node.workspace_bytes = kernel.workspace_bytes();
    node.forward_in_place = kernel.forward_in_place_ok();
    if (options_.training) {
      node.backward_in_place = kernel.backward_in_place_ok();
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        node.backward_reads_input.push_back(kernel.backward_reads_input(k));
      }
      node.backward_reads_output = kernel.backward_reads_output();
    }
    request.nodes.push_back(std::move(node));
  }
  if (options_.training) {
    backward_ = DeriveBackward(Differentiable(graph_), static_cast<int>(graph_.values.size()));
  }
  request.backward = backward_;
  request.host_reads = {graph_.nodes.back().output, graph_.logits};
  plan_ = PlanMemory(request);
}

void Program::Bind(char* arena, const Layout& layout, const float* parameters, float* gradients) {
  nodes_.clear();
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const ResolvedNode& node = graph_.nodes[i];
    BoundNode bound;
    for (int input : node.inputs)
      bound.inputs.push_back(At<const void>(arena, plan_.values[input]));
    for (int p : node.parameters) {
      bound.parameters.push_back(parameters + layout.parameters[p].flat_begin);
    }
    bound.output = At<void>(arena, plan_.values[node.output]);
    bound.saved = At<void>(arena, plan_.saved[i]);
    bound.workspace = At<void>(arena, plan_.forward_workspace[i]);
    nodes_.push_back(std::move(bound));
  }
  steps_.assign(backward_.size(), {});
  for (size_t step = 0; step < backward_.size(); ++step) {
    BindStep(static_cast<int>(step), arena, layout, gradients);
  }
  input_ = At<void>(arena, plan_.values[kInputValue]);
  labels_ = At<void>(arena, plan_.values[kLabelValue]);
  losses_ = At<const float>(arena, plan_.values[graph_.nodes.back().output]);
  logits_ = At<const float>(arena, plan_.values[graph_.logits]);
}

void Program::BindStep(int step, char* arena, const Layout& layout, float* gradients) {
  const BackwardStep& backward = backward_[step];
  const ResolvedNode& node = graph_.nodes[backward.node];
  BoundStep& bound = steps_[step];
  bound.grad_output = At<const void>(arena, plan_.gradients[node.output]);
  bound.workspace = At<void>(arena, plan_.backward_workspace[step]);
  for (int p : node.parameters) {
    bound.grad_parameters.push_back(gradients + layout.parameters[p].flat_begin);
  }
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int value = node.inputs[i];
    switch (backward.inputs[i]) {
      case GradientUse::kNone:
        bound.grad_inputs.push_back(nullptr);
        break;
      case GradientUse::kWrite:
        bound.grad_inputs.push_back(At<void>(arena, plan_.gradients[value]));
        break;
      case GradientUse::kAdd:
        bound.grad_inputs.push_back(At<void>(arena, plan_.aside[step][i]));
        bound.additions.push_back({At<float>(arena, plan_.gradients[value]),
                                   At<const float>(arena, plan_.aside[step][i]),
                                   value_bytes_[value] / sizeof(float)});
        break;
    }
  }
}

absl::Status Program::Load(const float* inputs, const int32_t* labels, Stream& stream) {
  if (input_ != nullptr) {
    STARLING_RETURN_IF_ERROR(
        device_->CopyToDevice(input_, inputs, value_bytes_[kInputValue], stream));
  }
  if (labels_ == nullptr) return absl::OkStatus();
  return device_->CopyToDevice(labels_, labels, value_bytes_[kLabelValue], stream);
}

absl::Status Program::Forward(int node, const RandomKey& random, Stream& stream) {
  const BoundNode& bound = nodes_[node];
  ForwardArgs args;
  args.inputs = bound.inputs;
  args.parameters = bound.parameters;
  args.output = bound.output;
  args.saved = bound.saved;
  args.workspace = bound.workspace;
  args.random = random;
  args.random.node = static_cast<uint32_t>(node);
  return kernels_[node]->Forward(args, stream);
}

absl::Status Program::Backward(int step, Stream& stream) {
  const int node = backward_[step].node;
  const BoundNode& forward = nodes_[node];
  const BoundStep& bound = steps_[step];
  BackwardArgs args;
  args.inputs = forward.inputs;
  args.parameters = forward.parameters;
  args.output = forward.output;
  args.grad_output = bound.grad_output;
  args.grad_inputs = bound.grad_inputs;
  args.grad_parameters = bound.grad_parameters;
  args.saved = forward.saved;
  args.workspace = bound.workspace;
  args.global_batch = options_.global_batch;
  STARLING_RETURN_IF_ERROR(kernels_[node]->Backward(args, stream));
  for (const Addition& addition : bound.additions) {
    STARLING_RETURN_IF_ERROR(device_->Add(addition.to, addition.from, addition.elements, stream));
  }
  return absl::OkStatus();
}

}  // namespace starling
