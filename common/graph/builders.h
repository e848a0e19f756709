// Graphs from short descriptions: `builtin: mlp | lenet | counter` and `layers: [...]`.
//
// Parameter names, initialisation and layouts are PyTorch's, so that an export loads there. All
// return a Graph that passes Validate; kInvalidArgument says which layer, what was expected, what
// came. Pure functions.
#ifndef STARLING_COMMON_GRAPH_BUILDERS_H_
#define STARLING_COMMON_GRAPH_BUILDERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/graph/operators.h"
#include "proto/model.pb.h"

namespace starling {

// What the data set looks like after preprocessing.
struct ModelInput {
  Dims sample_shape;    // [features] or [channels, height, width]
  int64_t classes = 0;  // labels are in [0, classes)
};

using LayerAttribute = std::variant<int64_t, double, bool, std::vector<int64_t>>;

// One entry of `layers:`, already freed from YAML. Each layer reads the one before it, the first
// the sample. Attributes are those of operators.h; input sizes are inferred, and a `linear` at the
// end may leave out_features out: it gets one per class.
struct LayerDescription {
  std::string op;
  std::string name;  // empty: the operator and its position, "conv2d0"
  std::map<std::string, LayerAttribute> attributes;
};

// `builtin: mlp`: linear and ReLU for each hidden size, then linear to the classes. The layers are
// fc1, fc2, ...; images are flattened first.
struct MlpOptions {
  std::vector<int64_t> hidden = {128, 64};
};

// The loss (softmax cross-entropy, node "loss") is appended; its input becomes the logits.
absl::StatusOr<Graph> BuildLayers(const ModelInput& input,
                                  absl::Span<const LayerDescription> layers);

absl::StatusOr<Graph> BuildMlp(const ModelInput& input, const MlpOptions& options);

// PyTorch's MNIST example: conv 3x3 to 32, conv 3x3 to 64, max pool 2, dense 128, with dropout 0.25
// and 0.5. 1,199,882 parameters for 1x28x28 and 10 classes.
absl::StatusOr<Graph> BuildLenet(const ModelInput& input);

// `builtin: counter`: sample i's gradient is -1 at row i of the parameter "counter" [samples], so
// after an epoch of SGD with rate 1 every row has grown by exactly 1. The row comes as the label.
absl::StatusOr<Graph> BuildCounter(int64_t samples);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_BUILDERS_H_
