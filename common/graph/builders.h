// Graphs from short descriptions: `builtin: NAME` with arguments, and `layers: [...]`.
//
// Parameter names, initialization and layouts are PyTorch's, so that an export loads there. Every
// returned Graph passes Validate. kInvalidArgument names the layer or argument, what was expected
// and what came. Pure functions.
#ifndef STARLING_COMMON_GRAPH_BUILDERS_H_
#define STARLING_COMMON_GRAPH_BUILDERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/graph/operators.h"
#include "proto/model.pb.h"

namespace starling {

// The data set's shape after preprocessing.
struct ModelInput {
  Dims sample_shape;    // [features], [channels, height, width] or, for tokens, [positions]
  int64_t classes = 0;  // int32 labels are in [0, classes)
  ElementType sample_type = FLOAT32;
  Dims label_shape = {};  // per sample
  ElementType label_type = INT32;
  int64_t vocabulary = 0;  // tokens are in [0, vocabulary)
  int64_t samples = 0;     // in the training data
};

using LayerAttribute = std::variant<int64_t, double, bool, std::vector<int64_t>>;

// One parsed entry of `layers:`. Attributes are those of operators.h. Input sizes are inferred, and
// a final `linear` may omit out_features: it gets one output per class, or per number in the label.
struct LayerDescription {
  std::string op;
  std::string name;  // empty: the operator and its position, "conv2d0"
  std::map<std::string, LayerAttribute> attributes;
  // Earlier layers, or "input"; empty: the layer before this one, or the sample for the first.
  std::vector<std::string> inputs = {};
  std::string parameters_of = "";  // shares that layer's parameters, role by role
  int line = 0;                    // in the job file; 0: unknown
};

inline constexpr char kDefaultLoss[] = "softmax_cross_entropy";

// Appends the loss as node "loss"; its input, the last layer, becomes the logits.
absl::StatusOr<Graph> BuildLayers(const ModelInput& input,
                                  absl::Span<const LayerDescription> layers,
                                  const std::string& loss = kDefaultLoss);

// `builtin: mlp`: a linear layer and ReLU for each hidden size, then a linear layer to the classes.
// The layers are fc1, fc2, ...; images are flattened first.
struct MlpOptions {
  std::vector<int64_t> hidden = {128, 64};
};

absl::StatusOr<Graph> BuildMlp(const ModelInput& input, const MlpOptions& options);

// PyTorch's MNIST example: conv 3x3 to 32, conv 3x3 to 64, max pool 2, dense 128, with dropout 0.25
// and 0.5. 1,199,882 parameters for 1x28x28 and 10 classes.
absl::StatusOr<Graph> BuildLenet(const ModelInput& input);

// `builtin: counter`: sample i's gradient is -1 at row i of the parameter "counter" [samples], so
// an epoch of SGD with rate 1 increases every row by exactly 1. The label is the row.
absl::StatusOr<Graph> BuildCounter(int64_t samples);

// An argument of a builtin: a key of the job file's `model` section, next to `builtin`.
struct BuiltinArgument {
  enum class Type : uint8_t { kInteger, kNumber, kBoolean, kText, kIntegers };
  const char* name;  // as in the job file
  Type type;
  const char* default_text;  // as a user would write it
  double minimum;            // for numbers, inclusive
  double maximum;
  std::vector<std::string> choices;  // kText: one of these
  const char* meaning;
};

struct Builtin {
  const char* name;
  const char* meaning;
  std::vector<BuiltinArgument> arguments;
};

// All builtins. An argument that two builtins share has the same meaning in both.
absl::Span<const Builtin> Builtins();

// nullptr: no builtin of that name.
const Builtin* FindBuiltin(absl::string_view name);

using BuiltinArguments = google::protobuf::Map<std::string, Attribute>;

// Appends `loss` to every builtin but counter, which has its own.
absl::StatusOr<Graph> BuildBuiltin(absl::string_view name, const BuiltinArguments& arguments,
                                   const ModelInput& input, const std::string& loss = kDefaultLoss);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_BUILDERS_H_
