// The backward pass, derived from the forward graph: plain data that an executor follows.
//
// Reverse-mode differentiation of a list of nodes in topological order: nodes are visited from last
// to first, each once, when the gradient of its output is complete. Pure.
#ifndef STARLING_COMMON_GRAPH_BACKWARD_H_
#define STARLING_COMMON_GRAPH_BACKWARD_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/graph/graph.h"

namespace starling {

// What differentiation must know about a node.
struct DifferentiableNode {
  std::vector<int> inputs;      // values
  int output = 0;               // value
  bool has_parameters = false;  // that need a gradient
};

enum class GradientUse : uint8_t {
  kNone,   // this input needs no gradient
  kWrite,  // the value's first gradient: written to its final place
  kAdd,    // the value has a gradient from a later consumer: written aside, then added
};

struct BackwardStep {
  int node = 0;
  std::vector<GradientUse> inputs;  // one per input of the node
  friend bool operator==(const BackwardStep&, const BackwardStep&) = default;
};

// The steps in execution order. `values` is the number of values; the last node is the loss, where
// the gradient starts. A node has no step if neither its parameters nor its inputs' ancestors are
// trained, or if the loss does not depend on it.
std::vector<BackwardStep> DeriveBackward(absl::Span<const DifferentiableNode> nodes, int values);

std::vector<DifferentiableNode> Differentiable(const ResolvedGraph& graph);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_BACKWARD_H_
