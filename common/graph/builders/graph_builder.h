// Builds a graph node by node: infers shapes, creates parameters, keeps the first error. Internal
// to common/graph/builders.
#ifndef STARLING_COMMON_GRAPH_BUILDERS_GRAPH_BUILDER_H_
#define STARLING_COMMON_GRAPH_BUILDERS_GRAPH_BUILDER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/graph/builders.h"
#include "proto/model.pb.h"

namespace starling::builders {

inline constexpr char kInputName[] = "input";
inline constexpr char kLossName[] = "loss";

using Attributes = std::map<std::string, LayerAttribute>;

// How a node's parameters differ from the operator's defaults.
struct Parameters {
  std::map<std::string, Initializer> init = {};  // by role: "weight"
  // Shares this node's parameters, role by role, instead of creating new ones.
  std::string of = "";
};

Initializer Constant(double value);
Initializer Normal(double standard_deviation);

// The requested number of outputs (0: none is), or else what the labels need.
inline int64_t OutputsOr(int64_t classes, const ModelInput& input) {
  if (classes > 0) return classes;
  if (input.label_type == INT32) return input.classes;
  return input.label_shape.empty() ? 1 : input.label_shape.back();
}

// Not thread-safe. After an error all calls are no-ops, and Finish returns the error.
class GraphBuilder {
 public:
  GraphBuilder(std::string name, const ModelInput& input);

  // Appends a node that reads `inputs` (the graph's input or earlier nodes) and returns its name.
  // Its parameters are named NAME.ROLE.
  std::string Add(const std::string& op, const std::string& name,
                  const std::vector<std::string>& inputs, const Attributes& attributes = {},
                  const Parameters& parameters = {});

  // A value's shape; empty after an error.
  Dims shape(const std::string& value) const;
  // The line of the job file that the next errors name (0: unknown).
  void SetPlace(int line) { line_ = line; }
  void Fail(const absl::Status& status);
  bool ok() const { return status_.ok(); }

  // Appends the loss, which reads `logits`, and checks the graph.
  absl::StatusOr<Graph> Finish(const std::string& loss_op, const std::string& logits);

 private:
  absl::Status AddNode(const std::string& op, const std::string& name,
                       const std::vector<std::string>& inputs, const Attributes& attributes,
                       const Parameters& parameters);
  absl::Status AddParameters(const std::vector<ParameterSpec>& specs,
                             const OperatorAttributes& attributes, const Parameters& parameters,
                             Node* node);
  absl::Status Share(const std::vector<ParameterSpec>& specs, const std::string& of, Node* node);

  const ModelInput input_;
  Graph graph_;
  absl::Status status_;
  int line_ = 0;
  std::map<std::string, Dims> shapes_;
  std::map<std::string, std::vector<std::string>> parameters_of_;  // parameter names by node
};

}  // namespace starling::builders

#endif  // STARLING_COMMON_GRAPH_BUILDERS_GRAPH_BUILDER_H_
