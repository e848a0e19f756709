// A checked model graph: names are resolved to indices, attributes are typed, shapes are known.
//
// Pure. A ResolvedGraph is a plain value, immutable by convention, and then thread-safe.
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
  std::vector<int> users;         // nodes, ascending; forward first reads it in users[0]
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
  std::vector<int> consumers;  // nodes, ascending; twice if a node reads it twice
};

struct ResolvedNode {
  std::string name;
  OpKind kind = OpKind::kRelu;
  OperatorAttributes attributes;
  std::vector<int> inputs;      // values
  int output = 0;               // value
  std::vector<int> parameters;  // in the operator's order
  int number = 0;               // index in the given graph; seeds its random numbers
};

struct ResolvedGraph {
  std::string name;
  std::vector<ResolvedValue> values;
  std::vector<ResolvedNode> nodes;            // topological; the last is the loss
  std::vector<ResolvedParameter> parameters;  // in the order of their first users
  int64_t parameter_elements = 0;             // total
  int logits = 0;                             // the value that predictions are read from
  int64_t classes = 0;                        // 0: the loss does not use classes
};

// Labels per sample that a prediction gets right or wrong: classes, or numbers that count as one
// above 0.5 (binary cross-entropy). 0: the loss has neither.
int64_t JudgedLabels(const ResolvedGraph& graph);
int64_t JudgedLabels(const Graph& graph);  // of a valid graph

// Whether the node runs as in evaluation even in training: a batch norm with frozen statistics
// normalizes with those.
bool UsesFrozenStatistics(const ResolvedGraph& graph, int node);

// Rejects everything that an executor cannot run: unknown operators and attributes; shapes and
// types that do not match; parameters that are missing, unused, out of the order of their first
// users, or of another shape or kind than the operator needs; shared statistics; values without a
// reader; cycles (nodes out of topological order); a frozen batch norm that a gradient would have
// to pass; sizes beyond limits.h. FROZEN is accepted for any kind. kInvalidArgument names the node,
// its operator, what was expected and what came.
absl::StatusOr<ResolvedGraph> Validate(const Graph& graph);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_GRAPH_H_
