// The backward pass, derived from the forward graph: plain data that an executor follows.
//
// Reverse-mode differentiation on a list of nodes in topological order: nodes are visited from the
// last to the first, each once, when the gradient of its output is complete. Pure.
#ifndef STARLING_COMMON_GRAPH_BACKWARD_H_
#define STARLING_COMMON_GRAPH_BACKWARD_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/graph/graph.h"

namespace starling {

// What differentiation needs to know of a node.
struct DifferentiableNode {
  std::vector<int> inputs;      // values
  int output = 0;               // value
  bool has_parameters = false;  // that want a gradient
};

enum class GradientUse : uint8_t {
  kNone,   // nobody wants this input's gradient
  kWrite,  // the first gradient of the value: written where it belongs
  kAdd,    // the value has one from a later consumer: written aside, then added
};

struct BackwardStep {
  int node = 0;
  std::vector<GradientUse> inputs;  // one per input of the node
  friend bool operator==(const BackwardStep&, const BackwardStep&) = default;
};

// The steps in execution order. `values` counts the values; the last node is the loss, where the
// gradient starts. A node whose parameters, and whose inputs' ancestors, have nothing to train has
// no step; nor has one that the loss does not depend on.
std::vector<BackwardStep> DeriveBackward(absl::Span<const DifferentiableNode> nodes, int values);

std::vector<DifferentiableNode> Differentiable(const ResolvedGraph& graph);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_BACKWARD_H_
