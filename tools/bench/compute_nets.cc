#include "tools/bench/compute_nets.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/graph/backward.h"
#include "common/graph/builders.h"

namespace starling {
namespace {

// Trained on images.
absl::StatusOr<ComputeNet> ImageNet(const char* builtin, const BuiltinArguments& arguments,
                                    const ModelInput& input, uint32_t batch) {
  ComputeNet net;
  STARLING_ASSIGN_OR_RETURN(*net.spec.mutable_model(), BuildBuiltin(builtin, arguments, input));
  net.spec.mutable_optimizer()->mutable_momentum()->set_momentum(0.9);
  net.spec.mutable_batch()->set_global(batch);
  net.rate = 0.001;
  return net;
}

absl::StatusOr<ComputeNet> Lenet() { return ImageNet("lenet", {}, {{1, 28, 28}, 10}, 128); }

absl::StatusOr<ComputeNet> Resnet18() {
  BuiltinArguments arguments;
  arguments["stem"].set_s("cifar");
  return ImageNet("resnet18", arguments, {{3, 32, 32}, 10}, 64);
}

// A GPT by `arguments`, on `context` tokens below `vocabulary`.
absl::StatusOr<ComputeNet> GptOf(const BuiltinArguments& arguments, int64_t context,
                                 int64_t vocabulary, uint32_t batch) {
  ComputeNet net;
  ModelInput input;
  input.sample_shape = input.label_shape = {context};
  input.sample_type = INT32;
  input.vocabulary = input.classes = vocabulary;
  STARLING_ASSIGN_OR_RETURN(*net.spec.mutable_model(), BuildBuiltin("gpt2", arguments, input));
  Optimizer::Adam& adamw = *net.spec.mutable_optimizer()->mutable_adamw();
  adamw.set_beta1(0.9);
  adamw.set_beta2(0.95);
  adamw.set_epsilon(1e-8);
  net.spec.mutable_optimizer()->set_weight_decay(0.1);
  net.spec.mutable_batch()->set_global(batch);
  net.rate = 0.0001;
  net.inputs_below = vocabulary;
  return net;
}

absl::StatusOr<ComputeNet> Gpt() {
  BuiltinArguments arguments;
  arguments["depth"].set_i(6);
  arguments["heads"].set_i(6);
  arguments["width"].set_i(384);
  return GptOf(arguments, /*context=*/256, /*vocabulary=*/256, /*batch=*/8);
}

absl::StatusOr<ComputeNet> Gpt2() {
  return GptOf({}, /*context=*/1024, /*vocabulary=*/50257, /*batch=*/16);
}

absl::StatusOr<ComputeNet> Resnet50() {
  return ImageNet("resnet50", {}, {{3, 224, 224}, 1000}, 256);
}

struct Entry {
  const char* name;
  absl::StatusOr<ComputeNet> (*make)();
  bool small = true;  // small enough to train on a CPU
};
constexpr Entry kNets[] = {{"lenet", Lenet},
                           {"resnet18", Resnet18},
                           {"gpt", Gpt},
                           {"resnet50", Resnet50, false},
                           {"gpt2", Gpt2, false}};

// For one sample's forward pass.
double ForwardFlops(const ResolvedGraph& graph, const ResolvedNode& node) {
  const auto elements = [&](int value) {
    return static_cast<double>(graph.values[value].elements);
  };
  switch (node.kind) {
    case OpKind::kConv2d:
    case OpKind::kLinear: {
      const Dims& weight = graph.parameters[node.parameters[0]].shape;
      double products = 2;  // per output element
      for (size_t i = 1; i < weight.size(); ++i) products *= static_cast<double>(weight[i]);
      return products * elements(node.output);
    }
    case OpKind::kAttention: {
      const double length = static_cast<double>(graph.values[node.output].shape[0]);
      const double keys = node.attributes.causal ? (length + 1) / 2 : length;
      return 2 * 2 * keys * elements(node.output);
    }
    default: return 0;
  }
}

}  // namespace

std::vector<std::string> ComputeNetNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kNets) {
    if (entry.small) names.emplace_back(entry.name);
  }
  return names;
}

std::vector<std::string> AllComputeNetNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kNets) names.emplace_back(entry.name);
  return names;
}

absl::StatusOr<ComputeNet> MakeComputeNet(absl::string_view name) {
  for (const Entry& entry : kNets) {
    if (name != entry.name) continue;
    STARLING_ASSIGN_OR_RETURN(ComputeNet net, entry.make());
    net.name = entry.name;
    net.spec.set_seed(1);
    return net;
  }
  return absl::NotFoundError(absl::StrCat(
      "expected a net, one of ", absl::StrJoin(AllComputeNetNames(), ", "), ", got '", name, "'"));
}

double StepFlops(const ResolvedGraph& graph) {
  double flops = 0;
  for (const ResolvedNode& node : graph.nodes) flops += ForwardFlops(graph, node);
  const std::vector<BackwardStep> steps =
      DeriveBackward(Differentiable(graph), static_cast<int>(graph.values.size()));
  for (const BackwardStep& step : steps) {
    const ResolvedNode& node = graph.nodes[step.node];
    const double forward = ForwardFlops(graph, node);
    if (node.kind == OpKind::kAttention) {
      flops += 2 * forward;  // each product has two gradients
      continue;
    }
    const bool weights = std::any_of(node.parameters.begin(), node.parameters.end(),
                                     [&](int p) { return graph.parameters[p].kind != FROZEN; });
    if (weights) flops += forward;
    if (step.inputs[0] != GradientUse::kNone) flops += forward;
  }
  return flops;
}

}  // namespace starling
