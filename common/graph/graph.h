// A checked model graph: names became indices, attributes typed, shapes known.
//
// Pure; a ResolvedGraph is a plain value, immutable by convention and then safe from any thread.
#ifndef STARLING_COMMON_GRAPH_GRAPH_H_
#define STARLING_COMMON_GRAPH_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/graph/operators.h"
#include "proto/model.pb.h"

namespace starling {

struct ResolvedParameter {
  std::string name;
  Dims shape;
  int64_t elements = 0;
  ParameterKind kind = TRAINABLE;
  Initializer init;
  double statistic_momentum = 0;  // STATISTIC only
  int node = 0;                   // its only user
};

// Value 0 is the graph's input, value 1 the labels (int32, shape {}), value i + 2 node i's output.
inline constexpr int kInputValue = 0;
inline constexpr int kLabelValue = 1;
inline constexpr int OutputValue(int node) { return node + 2; }

struct ResolvedValue {
  std::string name;
  Dims shape;                  // without the batch
  int64_t elements = 0;        // per sample
  int producer = -1;           // node; -1: the graph's input or the labels
  std::vector<int> consumers;  // nodes, ascending; a node twice when it reads the value twice
};

struct ResolvedNode {
  std::string name;
  OpKind kind = OpKind::kRelu;
  OperatorAttributes attributes;
  std::vector<int> inputs;      // values
  int output = 0;               // value
  std::vector<int> parameters;  // in the operator's order
};

struct ResolvedGraph {
  std::string name;
  std::vector<ResolvedValue> values;
  std::vector<ResolvedNode> nodes;            // topological; the last is the loss
  std::vector<ResolvedParameter> parameters;  // forward order: node by node
  int64_t parameter_elements = 0;             // in all
  int logits = 0;                             // value that predictions are read from
  int64_t classes = 0;                        // 0: the loss takes no labels
};

// Refuses everything that an executor could trip over: unknown operators and attributes, shapes
// that do not fit, parameters that are missing, left over, shared by two nodes, of another shape or
// kind than the operator wants or out of forward order, values that nothing reads, cycles (nodes
// out of topological order), sizes beyond limits.h. kInvalidArgument names the node, its operator,
// what was expected and what came.
absl::StatusOr<ResolvedGraph> Validate(const Graph& graph);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_GRAPH_H_
