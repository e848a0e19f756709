#include "common/graph/builders.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/graph/graph.h"

namespace starling {
namespace {

constexpr char kInputName[] = "input";
constexpr char kLossName[] = "loss";

Attribute ToProto(const LayerAttribute& attribute) {
  Attribute out;
  if (const auto* i = std::get_if<int64_t>(&attribute)) out.set_i(*i);
  if (const auto* f = std::get_if<double>(&attribute)) out.set_f(*f);
  if (const auto* b = std::get_if<bool>(&attribute)) out.set_i(*b ? 1 : 0);
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&attribute)) {
    out.mutable_ints()->mutable_values()->Add(ints->begin(), ints->end());
  }
  return out;
}

// Appends nodes one after the other, each reading the one before, with default parameters.
class Chain {
 public:
  explicit Chain(const ModelInput& input) : shape_(input.sample_shape) {
    graph_.mutable_input()->set_name(kInputName);
    graph_.mutable_input()->mutable_shape()->Add(shape_.begin(), shape_.end());
    graph_.set_classes(input.classes);
    last_ = kInputName;
  }

  absl::Status Append(const LayerDescription& layer) {
    const absl::Status status = AppendNode(layer);
    if (status.ok()) return status;
    return absl::InvalidArgumentError(absl::StrCat("layer ", graph_.nodes_size(), " \"", layer.name,
                                                   "\" (", layer.op, "): ", status.message()));
  }

  absl::StatusOr<Graph> Finish(absl::string_view loss_op) {
    graph_.set_logits(last_);
    Node* const loss = graph_.add_nodes();
    loss->set_name(kLossName);
    loss->set_op(std::string(loss_op));
    loss->add_inputs(last_);
    if (FindOperator(loss_op)->inputs.size() == 2) loss->add_inputs(kLabelsValue);
    STARLING_RETURN_IF_ERROR(Validate(graph_).status());
    return std::move(graph_);
  }

  Graph& graph() { return graph_; }

 private:
  absl::Status AppendNode(const LayerDescription& layer) {
    const OperatorRule* const rule = FindOperator(layer.op);
    if (rule == nullptr || rule->loss || rule->inputs[0] == InputKind::kLabels) {
      std::string names;
      for (const OperatorRule& candidate : Operators()) {
        if (candidate.loss || candidate.inputs[0] == InputKind::kLabels) continue;
        absl::StrAppend(&names, names.empty() ? "" : ", ", candidate.name);
      }
      return absl::InvalidArgumentError(absl::StrCat(
          rule == nullptr ? "unknown operator" : "not a layer", "; expected one of ", names));
    }
    Node node;
    node.set_name(layer.name);
    node.set_op(layer.op);
    node.add_inputs(last_);
    for (const auto& [name, attribute] : layer.attributes) {
      (*node.mutable_attributes())[name] = ToProto(attribute);
    }
    STARLING_ASSIGN_OR_RETURN(const OperatorAttributes attributes, ResolveAttributes(node, *rule));
    STARLING_ASSIGN_OR_RETURN(Dims output, InferShape(rule->kind, attributes, shape_));
    STARLING_ASSIGN_OR_RETURN(const std::vector<ParameterSpec> specs,
                              InferParameters(rule->kind, attributes, shape_));
    for (const ParameterSpec& spec : specs) {
      Parameter* const parameter = graph_.add_parameters();
      parameter->set_name(absl::StrCat(layer.name, ".", spec.role));
      parameter->mutable_shape()->Add(spec.shape.begin(), spec.shape.end());
      parameter->set_kind(spec.kind);
      *parameter->mutable_init() = spec.init;
      if (spec.kind == STATISTIC) parameter->set_statistic_momentum(attributes.momentum);
      node.add_parameters(parameter->name());
    }
    *graph_.add_nodes() = std::move(node);
    last_ = layer.name;
    shape_ = std::move(output);
    return absl::OkStatus();
  }

  Graph graph_;
  std::string last_;
  Dims shape_;
};

}  // namespace

absl::StatusOr<Graph> BuildLayers(const ModelInput& input,
                                  absl::Span<const LayerDescription> layers) {
  Chain chain(input);
  chain.graph().set_name("layers");
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerDescription layer = layers[i];
    if (layer.name.empty()) layer.name = absl::StrCat(layer.op, i);
    if (layer.op == "linear" && i + 1 == layers.size()) {
      layer.attributes.emplace("out_features", input.classes);
    }
    STARLING_RETURN_IF_ERROR(chain.Append(layer));
  }
  return chain.Finish("softmax_cross_entropy");
}

absl::StatusOr<Graph> BuildMlp(const ModelInput& input, const MlpOptions& options) {
  std::vector<LayerDescription> layers;
  if (input.sample_shape.size() > 1) layers.push_back({"flatten", "flatten", {}});
  int number = 1;
  for (int64_t hidden : options.hidden) {
    layers.push_back({"linear", absl::StrCat("fc", number), {{"out_features", hidden}}});
    layers.push_back({"relu", absl::StrCat("relu", number), {}});
    ++number;
  }
  layers.push_back({"linear", absl::StrCat("fc", number), {{"out_features", input.classes}}});
  STARLING_ASSIGN_OR_RETURN(Graph graph, BuildLayers(input, layers));
  graph.set_name("mlp");
  return graph;
}

absl::StatusOr<Graph> BuildLenet(const ModelInput& input) {
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
      {"linear", "fc2", {{"out_features", input.classes}}},
  };
  STARLING_ASSIGN_OR_RETURN(Graph graph, BuildLayers(input, layers));
  graph.set_name("lenet");
  return graph;
}

absl::StatusOr<Graph> BuildCounter(int64_t samples) {
  Graph graph;
  graph.set_name("counter");
  graph.mutable_input()->set_name(kInputName);
  graph.mutable_input()->add_shape(1);  // the row's index once more; nothing reads it
  Parameter* const parameter = graph.add_parameters();
  parameter->set_name("counter");
  parameter->add_shape(samples);
  parameter->set_kind(TRAINABLE);
  parameter->mutable_init()->set_kind(Initializer::CONSTANT);
  Node* const rows = graph.add_nodes();
  rows->set_name("row");
  rows->set_op("gather_rows");
  rows->add_inputs(kLabelsValue);
  rows->add_parameters("counter");
  (*rows->mutable_attributes())["rows"].set_i(samples);
  Node* const loss = graph.add_nodes();
  loss->set_name(kLossName);
  loss->set_op("negative_sum");
  loss->add_inputs("row");
  graph.set_logits("row");
  STARLING_RETURN_IF_ERROR(Validate(graph).status());
  return graph;
}

}  // namespace starling
