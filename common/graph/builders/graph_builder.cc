#include "common/graph/builders/graph_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest_name.h"
#include "common/base/status_macros.h"
#include "common/graph/graph.h"

namespace starling::builders {
namespace {

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

// The labels' shape for the loss: fp32 losses take a vector even where a label is a scalar.
Dims LabelShape(const ModelInput& input) {
  if (input.label_type == FLOAT32 && input.label_shape.empty()) return {1};
  return input.label_shape;
}

std::string RoleNames(absl::Span<const ParameterSpec> specs) {
  return absl::StrJoin(specs, ", ", [](std::string* out, const ParameterSpec& spec) {
    absl::StrAppend(out, spec.role);
  });
}

// The job file's spelling: softmax_cross_entropy is softmaxCrossEntropy.
std::string LossName(const std::string& op) {
  std::string name;
  bool upper = false;
  for (const char c : op) {
    if (c != '_') name += upper ? absl::ascii_toupper(c) : c;
    upper = c == '_';
  }
  return name;
}

}  // namespace

Initializer Constant(double value) { return MakeInitializer(Initializer::CONSTANT, value); }
Initializer Normal(double standard_deviation) {
  return MakeInitializer(Initializer::NORMAL, standard_deviation);
}

GraphBuilder::GraphBuilder(std::string name, const ModelInput& input) : input_(input) {
  graph_.set_name(std::move(name));
  graph_.mutable_input()->set_name(kInputName);
  graph_.mutable_input()->mutable_shape()->Add(input.sample_shape.begin(),
                                               input.sample_shape.end());
  graph_.mutable_input()->set_type(input.sample_type);
  const Dims labels = LabelShape(input);
  graph_.mutable_labels()->set_name(kLabelsValue);
  graph_.mutable_labels()->mutable_shape()->Add(labels.begin(), labels.end());
  graph_.mutable_labels()->set_type(input.label_type);
  shapes_[kInputName] = input.sample_shape;
}

Dims GraphBuilder::shape(const std::string& value) const {
  const auto found = shapes_.find(value);
  return found == shapes_.end() ? Dims() : found->second;
}

void GraphBuilder::Fail(const absl::Status& status) { status_.Update(status); }

std::string GraphBuilder::Add(const std::string& op, const std::string& name,
                              const std::vector<std::string>& inputs, const Attributes& attributes,
                              const Parameters& parameters) {
  if (!status_.ok()) return name;
  const absl::Status status = AddNode(op, name, inputs, attributes, parameters);
  if (!status.ok()) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("layer ", graph_.nodes_size(), " \"", name, "\" (", op, ")",
                     line_ > 0 ? absl::StrCat(", line ", line_) : "", ": ", status.message())));
  }
  return name;
}

absl::Status GraphBuilder::AddNode(const std::string& op, const std::string& name,
                                   const std::vector<std::string>& inputs,
                                   const Attributes& attributes, const Parameters& parameters) {
  const OperatorRule* const rule = FindOperator(op);
  if (rule == nullptr || rule->loss || rule->reads_labels()) {
    std::vector<std::string> names;
    for (const OperatorRule& candidate : Operators()) {
      if (!candidate.loss && !candidate.reads_labels()) names.push_back(candidate.name);
    }
    return absl::InvalidArgumentError(
        absl::StrCat(rule == nullptr ? "unknown operator" : "not a layer", "; expected one of ",
                     absl::StrJoin(names, ", "), DidYouMean(op, names)));
  }
  const size_t least = rule->inputs.size();
  if (rule->variadic() ? inputs.size() < least : inputs.size() != least) {
    return absl::InvalidArgumentError(absl::StrCat("expected ", rule->variadic() ? "at least " : "",
                                                   least, " inputs, got ", inputs.size(),
                                                   least > 1 ? " (inputs: [a, b])" : ""));
  }
  Node node;
  node.set_name(name);
  node.set_op(op);
  std::vector<Dims> shapes;
  for (const std::string& input : inputs) {
    const auto found = shapes_.find(input);
    if (found == shapes_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected its inputs to be layers before it, or \"", kInputName,
                       "\", got \"", input, "\""));
    }
    node.add_inputs(input);
    shapes.push_back(found->second);
  }
  for (const auto& [key, attribute] : attributes) {
    (*node.mutable_attributes())[key] = ToProto(attribute);
  }
  STARLING_ASSIGN_OR_RETURN(const OperatorAttributes resolved, ResolveAttributes(node, *rule));
  STARLING_ASSIGN_OR_RETURN(Dims output, InferShape(rule->kind, resolved, shapes));
  STARLING_ASSIGN_OR_RETURN(const std::vector<ParameterSpec> specs,
                            InferParameters(rule->kind, resolved, shapes));
  if (!shapes_.emplace(name, std::move(output)).second) {
    return absl::InvalidArgumentError("the name is taken by another layer; choose another");
  }
  STARLING_RETURN_IF_ERROR(AddParameters(specs, resolved, parameters, &node));
  *graph_.add_nodes() = std::move(node);
  return absl::OkStatus();
}

absl::Status GraphBuilder::AddParameters(const std::vector<ParameterSpec>& specs,
                                         const OperatorAttributes& attributes,
                                         const Parameters& parameters, Node* node) {
  if (!parameters.of.empty()) return Share(specs, parameters.of, node);
  for (const ParameterSpec& spec : specs) {
    Parameter* const parameter = graph_.add_parameters();
    parameter->set_name(absl::StrCat(node->name(), ".", spec.role));
    parameter->mutable_shape()->Add(spec.shape.begin(), spec.shape.end());
    parameter->set_kind(spec.kind);
    const auto init = parameters.init.find(spec.role);
    *parameter->mutable_init() = init == parameters.init.end() ? spec.init : init->second;
    if (spec.kind == STATISTIC) parameter->set_statistic_momentum(attributes.momentum);
    node->add_parameters(parameter->name());
    parameters_of_[node->name()].push_back(parameter->name());
  }
  return absl::OkStatus();
}

absl::Status GraphBuilder::Share(const std::vector<ParameterSpec>& specs, const std::string& of,
                                 Node* node) {
  if (specs.empty()) return absl::InvalidArgumentError("it has no parameters to share");
  const auto found = parameters_of_.find(of);
  if (found == parameters_of_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected parametersOf to name a layer before it that has parameters, got \"", of, "\""));
  }
  for (const ParameterSpec& spec : specs) {
    const std::string suffix = absl::StrCat(".", spec.role);
    const auto shared =
        std::find_if(found->second.begin(), found->second.end(),
                     [&](const std::string& name) { return absl::EndsWith(name, suffix); });
    if (shared == found->second.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "its parameters are ", RoleNames(specs), ", but those of \"", of, "\" are ",
          absl::StrJoin(found->second, ", "), specs.size() == 2 ? " (bias: false?)" : ""));
    }
    node->add_parameters(*shared);
  }
  parameters_of_[node->name()] = {node->parameters().begin(), node->parameters().end()};
  return absl::OkStatus();
}

absl::StatusOr<Graph> GraphBuilder::Finish(const std::string& loss_op, const std::string& logits) {
  STARLING_RETURN_IF_ERROR(status_);
  const OperatorRule* const rule = FindOperator(loss_op);
  if (rule == nullptr || !rule->loss) {
    return absl::InvalidArgumentError(absl::StrCat(
        "loss: expected softmaxCrossEntropy, meanSquaredError or binaryCrossEntropy, got \"",
        loss_op, "\""));
  }
  const bool classified = rule->inputs.back() == InputKind::kClasses;
  if (classified && input_.label_type == FLOAT32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the data's labels are numbers, and ", LossName(loss_op),
        " wants classes: expected loss: meanSquaredError or loss: binaryCrossEntropy"));
  }
  if (rule->inputs.back() == InputKind::kTargets && input_.label_type == INT32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the data's labels are classes, and ", LossName(loss_op),
        " wants numbers: expected data whose labels are numbers, or loss: softmaxCrossEntropy"));
  }
  graph_.set_logits(logits);
  Node* const loss = graph_.add_nodes();
  loss->set_name(kLossName);
  loss->set_op(loss_op);
  loss->add_inputs(logits);
  if (rule->inputs.size() == 2) loss->add_inputs(kLabelsValue);
  // The model may have more classes than the data shows.
  const Dims outputs = shape(logits);
  if (classified) {
    graph_.set_classes(outputs.empty() ? input_.classes : std::max(outputs.back(), input_.classes));
  }
  STARLING_RETURN_IF_ERROR(Validate(graph_).status());
  return std::move(graph_);
}

}  // namespace starling::builders
