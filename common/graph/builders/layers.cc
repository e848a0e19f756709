// `layers:`, the small builtins that are lists of layers (mlp, lenet), and counter.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/graph/builders.h"
#include "common/graph/builders/families.h"
#include "common/graph/builders/graph_builder.h"
#include "common/graph/graph.h"
#include "common/graph/model_size.h"

namespace starling {
namespace {

using builders::GraphBuilder;

absl::StatusOr<Graph> BuildNamedLayers(const std::string& name, const ModelInput& input,
                                       absl::Span<const LayerDescription> layers,
                                       const std::string& loss) {
  if (layers.size() >= kModelNodesMax) {  // the loss is a node, too; before any work for them
    return absl::InvalidArgumentError(absl::StrCat("model: expected at most ", kModelNodesMax - 1,
                                                   " layers, got ", layers.size()));
  }
  GraphBuilder builder(name, input);
  std::string last = builders::kInputName;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerDescription& layer = layers[i];
    builders::Attributes attributes = layer.attributes;
    if (layer.op == "linear" && i + 1 == layers.size()) {
      attributes.emplace("out_features", builders::OutputsOr(0, input));
    }
    builder.SetPlace(layer.line);
    last = builder.Add(layer.op, layer.name.empty() ? absl::StrCat(layer.op, i) : layer.name,
                       layer.inputs.empty() ? std::vector<std::string>{last} : layer.inputs,
                       attributes, {.of = layer.parameters_of});
  }
  return builder.Finish(loss, last);
}

}  // namespace

absl::StatusOr<Graph> BuildLayers(const ModelInput& input,
                                  absl::Span<const LayerDescription> layers,
                                  const std::string& loss) {
  return BuildNamedLayers("layers", input, layers, loss);
}

absl::StatusOr<Graph> BuildMlp(const ModelInput& input, const MlpOptions& options) {
  return builders::Mlp(input, options, kDefaultLoss);
}

absl::StatusOr<Graph> BuildLenet(const ModelInput& input) {
  return builders::Lenet(input, kDefaultLoss);
}

absl::StatusOr<Graph> BuildCounter(int64_t samples) {
  Graph graph;
  graph.set_name("counter");
  graph.mutable_input()->set_name(builders::kInputName);
  graph.mutable_input()->add_shape(1);  // the row's index again; nothing reads it
  Parameter* const parameter = graph.add_parameters();
  parameter->set_name("counter");
  parameter->add_shape(samples);
  parameter->set_kind(TRAINABLE);
  *parameter->mutable_init() = builders::Constant(0);
  Node* const rows = graph.add_nodes();
  rows->set_name("row");
  rows->set_op("gather_rows");
  rows->add_inputs(kLabelsValue);
  rows->add_parameters("counter");
  (*rows->mutable_attributes())["rows"].set_i(samples);
  Node* const loss = graph.add_nodes();
  loss->set_name(builders::kLossName);
  loss->set_op("negative_sum");
  loss->add_inputs("row");
  graph.set_logits("row");
  STARLING_RETURN_IF_ERROR(Validate(graph).status());
  return graph;
}

namespace builders {

absl::StatusOr<Graph> Mlp(const ModelInput& input, const MlpOptions& options,
                          const std::string& loss) {
  std::vector<LayerDescription> layers;
  if (input.sample_shape.size() > 1) layers.push_back({"flatten", "flatten", {}});
  int number = 1;
  for (int64_t hidden : options.hidden) {
    layers.push_back({"linear", absl::StrCat("fc", number), {{"out_features", hidden}}});
    layers.push_back({"relu", absl::StrCat("relu", number), {}});
    ++number;
  }
  layers.push_back({"linear", absl::StrCat("fc", number), {}});
  return BuildNamedLayers("mlp", input, layers, loss);
}

absl::StatusOr<Graph> Lenet(const ModelInput& input, const std::string& loss) {
  constexpr int64_t kThree = 3, kTwo = 2, kFilters1 = 32, kFilters2 = 64, kDense = 128;
  const std::vector<LayerDescription> layers = {
      {"conv2d", "conv1", {{"out_channels", kFilters1}, {"kernel", kThree}}},
      {"relu", "relu1", {}},
      {"conv2d", "conv2", {{"out_channels", kFilters2}, {"kernel", kThree}}},
      {"relu", "relu2", {}},
      {"maxpool2d", "pool", {{"kernel", kTwo}}},
      {"dropout", "dropout1", {{"rate", 0.25}}},
      {"flatten", "flatten", {}},
      {"linear", "fc1", {{"out_features", kDense}}},
      {"relu", "relu3", {}},
      {"dropout", "dropout2", {{"rate", 0.5}}},
      {"linear", "fc2", {}},
  };
  return BuildNamedLayers("lenet", input, layers, loss);
}

}  // namespace builders
}  // namespace starling
