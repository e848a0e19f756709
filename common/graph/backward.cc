#include "common/graph/backward.h"

#include <algorithm>

namespace starling {

std::vector<BackwardStep> DeriveBackward(absl::Span<const DifferentiableNode> nodes, int values) {
  std::vector<bool> wanted(values, false);  // depends on a trained parameter
  for (const DifferentiableNode& node : nodes) {
    wanted[node.output] =
        node.has_parameters || std::any_of(node.inputs.begin(), node.inputs.end(),
                                           [&](int input) { return wanted[input]; });
  }
  std::vector<bool> has_gradient(values, false);
  if (!nodes.empty()) has_gradient[nodes.back().output] = true;
  std::vector<BackwardStep> steps;
  for (int i = static_cast<int>(nodes.size()) - 1; i >= 0; --i) {
    const DifferentiableNode& node = nodes[i];
    if (!wanted[node.output] || !has_gradient[node.output]) continue;
    BackwardStep step{i, {}};
    for (int input : node.inputs) {
      if (!wanted[input]) {
        step.inputs.push_back(GradientUse::kNone);
        continue;
      }
      step.inputs.push_back(has_gradient[input] ? GradientUse::kAdd : GradientUse::kWrite);
      has_gradient[input] = true;
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<DifferentiableNode> Differentiable(const ResolvedGraph& graph) {
  std::vector<DifferentiableNode> nodes;
  for (const ResolvedNode& node : graph.nodes) {
    const bool wants = std::any_of(node.parameters.begin(), node.parameters.end(),
                                   [&](int p) { return graph.parameters[p].kind != FROZEN; });
    nodes.push_back({node.inputs, node.output, wants});
  }
  return nodes;
}

}  // namespace starling
