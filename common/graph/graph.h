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
  std::vector<int> users;         // nodes, ascending; the first is where forward needs it
};

// Value 0 is the graph's input, value 1 the labels, value i + 2 node i's output. The last is fp32.
inline constexpr int kInputValue = 0;
inline constexpr int kLabelValue = 1;
inline constexpr int OutputValue(int node) { return node + 2; }

struct ResolvedValue {
  std::string name;
  ElementType type = FLOAT32;
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
  int number = 0;               // its index in the graph as given: random numbers are drawn for it
};

struct ResolvedGraph {
  std::string name;
  std::vector<ResolvedValue> values;
  std::vector<ResolvedNode> nodes;            // topological; the last is the loss
  std::vector<ResolvedParameter> parameters;  // in the order of their first users
  int64_t parameter_elements = 0;             // in all
  int logits = 0;                             // value that predictions are read from
  int64_t classes = 0;                        // 0: the loss takes no classes
};

// Labels of a sample that a prediction gets right or wrong: classes, or numbers that are one where
// they exceed 0.5 (binary cross-entropy). 0: the loss knows neither.
int64_t JudgedLabels(const ResolvedGraph& graph);
int64_t JudgedLabels(const Graph& graph);  // of a valid one

// Whether the node computes as in evaluation, also while training: a batch norm whose statistics
// are frozen normalises with them.
bool UsesFrozenStatistics(const ResolvedGraph& graph, int node);

// Refuses everything that an executor could trip over: unknown operators and attributes, shapes and
// types that do not fit, parameters that are missing, left over, of another shape or kind than the
// operator wants or out of the order of their first users, shared statistics, values that nothing
// reads, cycles (nodes out of topological order), a frozen batch norm that a gradient would have to
// pass, sizes beyond limits.h. FROZEN stands for any kind. kInvalidArgument names the node, its
// operator, what was expected and what came.
absl::StatusOr<ResolvedGraph> Validate(const Graph& graph);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_GRAPH_H_
