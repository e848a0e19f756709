#include "worker/executor/program.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/graph/recompute.h"
#include "worker/executor/slower_operators.h"

namespace starling {
namespace {

Shape WithBatch(int64_t samples, const Dims& dims) {
  Shape shape = {samples};
  shape.insert(shape.end(), dims.begin(), dims.end());
  return shape;
}

std::vector<int64_t> Pair(const std::array<int64_t, 2>& pair) { return {pair[0], pair[1]}; }

// What the kernel needs besides its shapes. `output` is the node's, without the batch.
AttributeMap KernelAttributes(const ResolvedNode& node, const Dims& output) {
  const OperatorAttributes& a = node.attributes;
  const auto flag = [](bool set) { return int64_t{set ? 1 : 0}; };
  switch (node.kind) {
    case OpKind::kConv2d:
      return {{"stride", Pair(a.stride)},
              {"padding", Pair(a.padding)},
              {"dilation", Pair(a.dilation)},
              {"groups", a.groups}};
    case OpKind::kMaxPool2d:
    case OpKind::kAvgPool2d:
      return {{"kernel", Pair(a.kernel)}, {"stride", Pair(a.stride)}, {"padding", Pair(a.padding)}};
    case OpKind::kBatchNorm: return {{"epsilon", a.epsilon}, {"relu", flag(a.relu)}};
    case OpKind::kLayerNorm: return {{"epsilon", a.epsilon}};
    case OpKind::kDropout: return {{"rate", a.rate}};
    case OpKind::kGelu: return {{"approximate", flag(a.approximate)}};
    case OpKind::kClip: return {{"minimum", a.minimum}, {"maximum", a.maximum}};
    case OpKind::kConcat: return {{"axis", a.axis}};
    case OpKind::kSlice: return {{"axis", a.axis}, {"begin", a.begin}, {"length", a.length}};
    case OpKind::kReshape: return {{"shape", output}};
    case OpKind::kTranspose: return {{"axes", a.axes}};
    case OpKind::kMatmul: return {{"transpose_b", flag(a.transpose_b)}, {"scale", a.scale}};
    case OpKind::kAttention: return {{"heads", a.heads}, {"causal", flag(a.causal)}};
    case OpKind::kSoftmaxCrossEntropy:
    case OpKind::kMeanSquaredError:
    case OpKind::kBinaryCrossEntropy: return {{"reduction", std::string("mean")}};
    case OpKind::kNegativeSum: return {{"reduction", std::string("sum")}};
    case OpKind::kLinear: return {{"gelu", flag(a.gelu)}};
    case OpKind::kRelu:
    case OpKind::kSigmoid:
    case OpKind::kTanh:
    case OpKind::kFlatten:
    case OpKind::kAdd:
    case OpKind::kMul:
    case OpKind::kGlobalAvgPool2d:
    case OpKind::kEmbedding:
    case OpKind::kPositionEmbedding:
    case OpKind::kGatherRows: return {};
  }
  return {};
}

size_t Aligned(size_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
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
  spec.attributes = KernelAttributes(resolved, graph.values[resolved.output].shape);
  spec.type = options.type;
  spec.tf32 = options.tf32;
  spec.training = options.training && !UsesFrozenStatistics(graph, node);
  spec.kernel_threads = options.kernel_threads;
  for (int input : resolved.inputs) {
    spec.input_shapes.push_back(WithBatch(options.samples, graph.values[input].shape));
  }
  for (int parameter : resolved.parameters) {
    spec.parameter_shapes.push_back(graph.parameters[parameter].shape);
  }
  // To the kernel, a table of scalars has rows of one element.
  if (resolved.kind == OpKind::kGatherRows) spec.parameter_shapes[0].push_back(1);
  spec.output_shape = WithBatch(options.samples, graph.values[resolved.output].shape);
  spec.tune = options.tune;
  const bool logits = resolved.output == graph.logits;
  spec.judged_output = logits && !options.host_reads_logits &&
                       graph.nodes.back().kind == OpKind::kSoftmaxCrossEntropy;
  spec.plain_output = Rule(resolved.kind).loss || (logits && !spec.judged_output);
  return spec;
}

absl::StatusOr<std::unique_ptr<Program>> Program::Create(const ResolvedGraph& graph, Device* device,
                                                         const ProgramOptions& options,
                                                         const Program* twin) {
  std::unique_ptr<Program> program(new Program(graph, device, options));
  STARLING_RETURN_IF_ERROR(program->CreateKernels());
  if (options.training) {
    program->backward_ =
        DeriveBackward(Differentiable(graph), static_cast<int>(graph.values.size()));
    program->shared_bytes_ = SharedGradientBytes(graph);
  }
  if (twin != nullptr) {
    program->plan_ = twin->plan_;
  } else {
    STARLING_RETURN_IF_ERROR(program->Plan());
  }
  return program;
}

absl::Status Program::CreateKernels() {
  value_formats_.resize(graph_.values.size());
  value_bytes_.resize(graph_.values.size());
  static_assert(sizeof(float) == sizeof(int32_t));  // both element types
  for (int value : {kInputValue, kLabelValue}) {
    value_bytes_[value] = sizeof(float) * options_.samples * graph_.values[value].elements;
  }
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    const ResolvedNode& node = graph_.nodes[i];
    OperatorSpec spec = KernelSpec(graph_, static_cast<int>(i), options_);
    for (int input : node.inputs) spec.input_formats.push_back(value_formats_[input]);
    STARLING_ASSIGN_OR_RETURN(std::unique_ptr<OperatorKernel> kernel,
                              device_->CreateOperator(spec));
    value_formats_[node.output] = kernel->output_format();
    value_bytes_[node.output] = kernel->output_bytes();
    kernels_.push_back(std::move(kernel));
  }
  return absl::OkStatus();
}

std::vector<std::string> Program::slower_operators() const {
  std::vector<std::pair<std::string, std::string>> operators;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    operators.emplace_back(graph_.nodes[i].name, kernels_[i]->slower_because());
  }
  return DescribeSlower(operators);
}

absl::Status Program::Plan() {
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
    if (options_.training && !UsesFrozenStatistics(graph_, static_cast<int>(i))) {
      node.backward_in_place = kernel.backward_in_place_ok();
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        node.backward_reads_input.push_back(kernel.backward_reads_input(k));
      }
      node.backward_reads_output = kernel.backward_reads_output();
    }
    request.nodes.push_back(std::move(node));
  }
  request.backward = backward_;
  request.host_reads = {graph_.nodes.back().output, graph_.logits};
  if (options_.training && options_.recompute.policy_case() != Recompute::POLICY_NOT_SET) {
    STARLING_RETURN_IF_ERROR(ChooseDropped(OutlineRecompute(graph_), options_.recompute, &request));
  }
  plan_ = PlanMemory(request);
  return absl::OkStatus();
}

double Program::recomputed_share() const {
  return RecomputedShare(OutlineRecompute(graph_), plan_);
}

// Backward writes a gradient in place; the second and each further user of a parameter, in
// backward's order, writes it to a separate buffer.
size_t Program::SharedGradientBytes(const ResolvedGraph& graph) {
  size_t most = 0;
  for (const ResolvedNode& node : graph.nodes) {
    size_t bytes = 0;
    for (int p : node.parameters) {
      const ResolvedParameter& parameter = graph.parameters[p];
      if (parameter.users.size() < 2 || parameter.kind == FROZEN) continue;
      bytes += Aligned(parameter.elements * sizeof(float));
    }
    most = std::max(most, bytes);
  }
  return most;
}

void Program::Bind(char* arena, const Layout& layout, const float* parameters, float* gradients,
                   const StepValues* values) {
  values_ = values;
  nodes_.clear();
  late_nodes_.clear();
  for (int i = 0; i < static_cast<int>(kernels_.size()); ++i) {
    nodes_.push_back(
        BindNode(i, arena, layout, parameters, plan_.values, plan_.saved, plan_.forward_workspace));
    late_nodes_.push_back(BindNode(i, arena, layout, parameters, plan_.backward_values,
                                   plan_.backward_saved, plan_.second_workspace));
  }
  steps_.assign(backward_.size(), {});
  std::vector<bool> written(graph_.parameters.size(), false);
  for (size_t step = 0; step < backward_.size(); ++step) {
    BindStep(static_cast<int>(step), arena);
    BindParameterGradients(static_cast<int>(step), arena, layout, gradients, &written);
  }
  input_ = At<void>(arena, plan_.values[kInputValue]);
  labels_ = At<void>(arena, plan_.values[kLabelValue]);
  losses_ = At<const float>(arena, plan_.values[graph_.nodes.back().output]);
  logits_ = At<const void>(arena, plan_.values[graph_.logits]);
}

Program::BoundNode Program::BindNode(int node, char* arena, const Layout& layout,
                                     const float* parameters, const std::vector<Block>& values,
                                     const std::vector<Block>& saved,
                                     const std::vector<Block>& workspace) const {
  const ResolvedNode& resolved = graph_.nodes[node];
  BoundNode bound;
  for (int input : resolved.inputs) bound.inputs.push_back(At<const void>(arena, values[input]));
  for (int p : resolved.parameters) {
    bound.parameters.push_back(parameters + layout.parameters[p].flat_begin);
  }
  bound.output = At<void>(arena, values[resolved.output]);
  bound.saved = At<void>(arena, saved[node]);
  bound.workspace = At<void>(arena, workspace[node]);
  return bound;
}

void Program::BindParameterGradients(int step, char* arena, const Layout& layout, float* gradients,
                                     std::vector<bool>* written) {
  BoundStep& bound = steps_[step];
  char* aside = arena + Aligned(plan_.peak_bytes);
  for (int p : graph_.nodes[backward_[step].node].parameters) {
    if (graph_.parameters[p].kind == FROZEN) {
      bound.grad_parameters.push_back(nullptr);
      continue;
    }
    float* const place = gradients + layout.parameters[p].flat_begin;
    if (!(*written)[p]) {
      bound.grad_parameters.push_back(place);
    } else {
      const size_t bytes = graph_.parameters[p].elements * sizeof(float);
      bound.grad_parameters.push_back(reinterpret_cast<float*>(aside));
      bound.additions.push_back({place, aside, bytes, ValueFormat()});
      aside += Aligned(bytes);
    }
    (*written)[p] = true;
  }
}

void Program::BindStep(int step, char* arena) {
  const BackwardStep& backward = backward_[step];
  const ResolvedNode& node = graph_.nodes[backward.node];
  BoundStep& bound = steps_[step];
  bound.grad_output = At<const void>(arena, plan_.gradients[node.output]);
  bound.workspace = At<void>(arena, plan_.backward_workspace[step]);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int value = node.inputs[i];
    switch (backward.inputs[i]) {
      case GradientUse::kNone: bound.grad_inputs.push_back(nullptr); break;
      case GradientUse::kWrite:
        bound.grad_inputs.push_back(At<void>(arena, plan_.gradients[value]));
        break;
      case GradientUse::kAdd:
        bound.grad_inputs.push_back(At<void>(arena, plan_.aside[step][i]));
        bound.additions.push_back({At<void>(arena, plan_.gradients[value]),
                                   At<const void>(arena, plan_.aside[step][i]), value_bytes_[value],
                                   value_formats_[value]});
        break;
    }
  }
}

absl::Status Program::Load(const void* inputs, const void* labels, Stream& stream) {
  if (input_ != nullptr) {
    STARLING_RETURN_IF_ERROR(
        device_->CopyToDevice(input_, inputs, value_bytes_[kInputValue], stream));
  }
  if (labels_ == nullptr) return absl::OkStatus();
  return device_->CopyToDevice(labels_, labels, value_bytes_[kLabelValue], stream);
}

absl::Status Program::LoadFromDevice(const void* inputs, const void* labels, Stream& stream) {
  if (input_ != nullptr) {
    STARLING_RETURN_IF_ERROR(device_->Copy(input_, inputs, value_bytes_[kInputValue], stream));
  }
  if (labels_ == nullptr) return absl::OkStatus();
  return device_->Copy(labels_, labels, value_bytes_[kLabelValue], stream);
}

absl::Status Program::Forward(int node, const RandomKey& random, Stream& stream) {
  return RunForward(node, nodes_[node], random, stream);
}

absl::Status Program::ForwardAgain(int node, const RandomKey& random, Stream& stream) {
  return RunForward(node, late_nodes_[node], random, stream);
}

absl::Status Program::RunForward(int node, const BoundNode& bound, const RandomKey& random,
                                 Stream& stream) {
  ForwardArgs args;
  args.inputs = bound.inputs;
  args.parameters = bound.parameters;
  args.output = bound.output;
  args.saved = bound.saved;
  args.workspace = bound.workspace;
  args.random = random;
  args.random.node = static_cast<uint32_t>(graph_.nodes[node].number);
  args.values = values_;
  return kernels_[node]->Forward(args, stream);
}

absl::Status Program::Backward(int step, double loss_scale, Stream& stream) {
  const int node = backward_[step].node;
  const BoundNode& forward = late_nodes_[node];
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
  args.loss_scale = loss_scale;
  args.values = values_;
  STARLING_RETURN_IF_ERROR(kernels_[node]->Backward(args, stream));
  for (const Addition& addition : bound.additions) {
    STARLING_RETURN_IF_ERROR(
        device_->AddValues(addition.to, addition.from, addition.bytes, addition.format, stream));
  }
  return absl::OkStatus();
}

}  // namespace starling
