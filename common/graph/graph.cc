#include "common/graph/graph.h"

#include <cmath>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/graph/backward.h"
#include "common/graph/model_size.h"
#include "common/protocol/limits.h"

namespace starling {
namespace {

absl::Status Invalid(absl::string_view message) { return absl::InvalidArgumentError(message); }

// Names appear in messages, tables and file headers: printable ASCII without blanks and quotes.
absl::Status CheckName(absl::string_view what, absl::string_view name) {
  bool good = !name.empty() && name.size() <= limits::kNameBytesMax;
  for (char c : name) good &= absl::ascii_isgraph(c) && c != '"' && c != '\'' && c != '\\';
  if (good) return absl::OkStatus();
  return Invalid(
      absl::StrCat("the name of a ", what, " must be 1 to ", limits::kNameBytesMax,
                   " printable ASCII characters without blanks, quotes and backslashes, got ",
                   name.size(), " bytes: \"", absl::CHexEscape(name.substr(0, 64)), "\""));
}

std::string KindName(int kind) {
  return ParameterKind_IsValid(kind) ? ParameterKind_Name(static_cast<ParameterKind>(kind))
                                     : absl::StrCat(kind);
}

Dims ToDims(const google::protobuf::RepeatedField<int64_t>& shape) {
  return {shape.begin(), shape.end()};
}

absl::Status CheckInitializer(const Initializer& init, const std::string& init_file) {
  const bool finite = std::isfinite(init.value()) && std::abs(init.value()) <= 1e30;
  if (init.kind() == Initializer::CONSTANT && finite) return absl::OkStatus();
  if ((init.kind() == Initializer::UNIFORM || init.kind() == Initializer::NORMAL) && finite &&
      init.value() >= 0) {
    return absl::OkStatus();
  }
  if (init.kind() == Initializer::FILE) {
    if (!init_file.empty()) return absl::OkStatus();  // checked by its reader
    return Invalid("its first values are in a file, but the model names none (init_file)");
  }
  return Invalid(
      absl::StrCat("expected an initialiser CONSTANT (finite), UNIFORM, NORMAL (finite, not "
                   "negative) or FILE, got kind ",
                   static_cast<int>(init.kind()), ", value ", init.value()));
}

class Validator {
 public:
  explicit Validator(const Graph& graph) : graph_(graph) {}

  absl::StatusOr<ResolvedGraph> Run() {
    STARLING_RETURN_IF_ERROR(CheckHeader());
    for (int i = 0; i < graph_.nodes_size(); ++i) {
      const absl::Status status = AddNode(i);
      if (!status.ok()) {
        const Node& node = graph_.nodes(i);
        return Invalid(absl::StrCat("node \"", absl::CHexEscape(node.name()), "\" (",
                                    absl::CHexEscape(node.op()), "): ", status.message()));
      }
    }
    STARLING_RETURN_IF_ERROR(CheckParametersUsed());
    STARLING_RETURN_IF_ERROR(CheckValuesUsed());
    STARLING_RETURN_IF_ERROR(CheckOutputs());
    STARLING_RETURN_IF_ERROR(CheckFrozen());
    return std::move(out_);
  }

 private:
  absl::Status CheckHeader() {
    out_.name = graph_.name();
    if (graph_.nodes_size() == 0) return Invalid("the model has no nodes");
    if (graph_.nodes_size() > kModelNodesMax ||
        graph_.parameters_size() > static_cast<int>(limits::kTensorsPerJobMax)) {
      return Invalid(absl::StrCat("expected at most ", kModelNodesMax, " nodes and ",
                                  limits::kTensorsPerJobMax, " parameters, got ",
                                  graph_.nodes_size(), " and ", graph_.parameters_size()));
    }
    STARLING_RETURN_IF_ERROR(AddInput(graph_.input().name(), graph_.input(), FLOAT32));
    STARLING_RETURN_IF_ERROR(AddInput(kLabelsValue, graph_.labels(), INT32));
    for (int p = 0; p < graph_.parameters_size(); ++p) {
      const std::string& name = graph_.parameters(p).name();
      STARLING_RETURN_IF_ERROR(CheckName("parameter", name));
      if (!declared_.emplace(name, p).second) {
        return Invalid(absl::StrCat("two parameters are named \"", name, "\""));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddInput(const std::string& name, const Value& value, ElementType fallback) {
    if (!ElementType_IsValid(value.type())) {
      return Invalid(absl::StrCat("value \"", absl::CHexEscape(name),
                                  "\": expected the type FLOAT32 or INT32, got ",
                                  static_cast<int>(value.type())));
    }
    STARLING_RETURN_IF_ERROR(AddValue(name, ToDims(value.shape()), -1));
    out_.values.back().type = value.type() == ELEMENT_TYPE_UNSPECIFIED ? fallback : value.type();
    return absl::OkStatus();
  }

  absl::Status AddValue(const std::string& name, Dims shape, int producer) {
    STARLING_RETURN_IF_ERROR(CheckName(producer < 0 ? "graph input" : "node", name));
    absl::StatusOr<int64_t> elements = CheckedElements(shape);
    if (!elements.ok()) {
      return Invalid(absl::StrCat("value \"", name, "\": ", elements.status().message()));
    }
    if (!value_index_.emplace(name, out_.values.size()).second) {
      return Invalid(absl::StrCat(
          "the name is taken by another node, the graph's input or the labels; choose another"));
    }
    out_.values.push_back({name, FLOAT32, std::move(shape), *elements, producer, {}});
    return absl::OkStatus();
  }

  absl::Status AddNode(int index) {
    const Node& node = graph_.nodes(index);
    const OperatorRule* const rule = FindOperator(node.op());
    if (rule == nullptr) {
      return Invalid(absl::StrCat("unknown operator; expected one of ", KnownOperators()));
    }
    if (rule->loss != (index == graph_.nodes_size() - 1)) {
      return Invalid(rule->loss ? "a loss must be the last node, and the only loss"
                                : "the last node must be a loss");
    }
    ResolvedNode resolved;
    resolved.name = node.name();
    resolved.kind = rule->kind;
    resolved.number = index;
    STARLING_ASSIGN_OR_RETURN(resolved.attributes, ResolveAttributes(node, *rule));
    STARLING_RETURN_IF_ERROR(ResolveInputs(index, *rule, &resolved));
    std::vector<Dims> shapes;
    for (int input : resolved.inputs) shapes.push_back(out_.values[input].shape);
    STARLING_ASSIGN_OR_RETURN(Dims output, InferShape(rule->kind, resolved.attributes, shapes));
    STARLING_RETURN_IF_ERROR(ResolveParameters(index, shapes, &resolved));
    resolved.output = static_cast<int>(out_.values.size());
    STARLING_RETURN_IF_ERROR(AddValue(node.name(), std::move(output), index));
    out_.nodes.push_back(std::move(resolved));
    return absl::OkStatus();
  }

  absl::Status ResolveInputs(int index, const OperatorRule& rule, ResolvedNode* resolved) {
    const Node& node = graph_.nodes(index);
    const int least = static_cast<int>(rule.inputs.size());
    if (rule.variadic() ? node.inputs_size() < least : node.inputs_size() != least) {
      return Invalid(absl::StrCat("expected ", rule.variadic() ? "at least " : "", least,
                                  " inputs, got ", node.inputs_size()));
    }
    for (int i = 0; i < node.inputs_size(); ++i) {
      const auto found = value_index_.find(node.inputs(i));
      if (found == value_index_.end()) {
        return Invalid(absl::StrCat("input \"", absl::CHexEscape(node.inputs(i)),
                                    "\" is neither the graph's input, \"", kLabelsValue,
                                    "\", nor an earlier node"));
      }
      const absl::Status status = CheckInput(rule.inputs[std::min(i, least - 1)], found->second);
      if (!status.ok()) return Invalid(absl::StrCat("input ", i, ": ", status.message()));
      resolved->inputs.push_back(found->second);
      out_.values[found->second].consumers.push_back(index);
    }
    return absl::OkStatus();
  }

  absl::Status CheckInput(InputKind kind, int index) const {
    const ResolvedValue& value = out_.values[index];
    const bool labels = index == kLabelValue, integers = value.type == INT32;
    std::string expected;
    switch (kind) {
      case InputKind::kTensor:
        if (!labels && !integers) return absl::OkStatus();
        expected = "a tensor of numbers (tokens go through an embedding first)";
        break;
      case InputKind::kTokens:
        if (!labels && integers) return absl::OkStatus();
        expected = "int32 tokens: the graph's input, of text or token data";
        break;
      case InputKind::kClasses:
        if (labels && integers) return absl::OkStatus();
        expected = "\"labels\" that are classes";
        break;
      case InputKind::kTargets:
        if (labels && !integers) return absl::OkStatus();
        expected = "\"labels\" that are numbers (fp32)";
        break;
    }
    return Invalid(absl::StrCat("expected ", expected, ", got ",
                                labels ? "the labels" : absl::StrCat("\"", value.name, "\""),
                                integers ? " (int32)" : " (fp32)"));
  }

  absl::Status ResolveParameters(int index, absl::Span<const Dims> inputs, ResolvedNode* resolved) {
    const Node& node = graph_.nodes(index);
    STARLING_ASSIGN_OR_RETURN(const std::vector<ParameterSpec> specs,
                              InferParameters(resolved->kind, resolved->attributes, inputs));
    if (node.parameters_size() != static_cast<int>(specs.size())) {
      std::string roles;
      for (const ParameterSpec& spec : specs) {
        absl::StrAppend(&roles, roles.empty() ? "" : ", ", spec.role, " ",
                        DimsToString(spec.shape));
      }
      return Invalid(absl::StrCat("expected ", specs.size(), " parameters (",
                                  roles.empty() ? "none" : roles, "), got ",
                                  node.parameters_size()));
    }
    for (int i = 0; i < node.parameters_size(); ++i) {
      const std::string& name = node.parameters(i);
      const absl::StatusOr<int> parameter = UseParameter(index, name, specs[i], *resolved);
      if (!parameter.ok()) {
        return Invalid(absl::StrCat("parameter \"", absl::CHexEscape(name), "\" (", specs[i].role,
                                    "): ", parameter.status().message()));
      }
      resolved->parameters.push_back(*parameter);
    }
    return absl::OkStatus();
  }

  // The parameter's index. Its first user adds it.
  absl::StatusOr<int> UseParameter(int node, const std::string& name, const ParameterSpec& spec,
                                   const ResolvedNode& resolved) {
    const auto found = declared_.find(name);
    if (found == declared_.end()) return Invalid("it is not declared among the model's parameters");
    const int next = static_cast<int>(out_.parameters.size());
    if (found->second > next) {
      return Invalid(absl::StrCat("parameters must be declared in forward order: expected \"", name,
                                  "\" at position ", next, ", got it at ", found->second));
    }
    const Parameter& parameter = graph_.parameters(found->second);
    STARLING_RETURN_IF_ERROR(CheckParameter(parameter, spec, resolved));
    if (found->second == next) {
      STARLING_RETURN_IF_ERROR(AddParameter(parameter));
    } else if (out_.parameters[found->second].users.back() == node) {
      return Invalid("the same node uses it already");
    } else if (spec.kind == STATISTIC) {
      return Invalid("statistics cannot be shared: each batch norm has its own");
    }
    out_.parameters[found->second].users.push_back(node);
    return found->second;
  }

  absl::Status CheckParameter(const Parameter& parameter, const ParameterSpec& spec,
                              const ResolvedNode& resolved) const {
    const Dims shape = ToDims(parameter.shape());
    if (shape != spec.shape) {
      return Invalid(absl::StrCat("expected the shape ", DimsToString(spec.shape), ", got ",
                                  DimsToString(shape)));
    }
    if (parameter.kind() != spec.kind && parameter.kind() != FROZEN) {
      return Invalid(absl::StrCat("expected the kind ", KindName(spec.kind), ", got ",
                                  KindName(parameter.kind())));
    }
    if (parameter.kind() == STATISTIC &&
        parameter.statistic_momentum() != resolved.attributes.momentum) {
      return Invalid(absl::StrCat("expected the statistic_momentum ", resolved.attributes.momentum,
                                  " of its node, got ", parameter.statistic_momentum()));
    }
    return CheckInitializer(parameter.init(), graph_.init_file());
  }

  absl::Status AddParameter(const Parameter& parameter) {
    Dims shape = ToDims(parameter.shape());
    STARLING_ASSIGN_OR_RETURN(const int64_t elements, CheckedElements(shape));
    out_.parameter_elements += elements;  // at most 100,000 * 2^33: no overflow
    if (out_.parameter_elements > static_cast<int64_t>(limits::kParametersPerJobMax)) {
      return Invalid(absl::StrCat("expected at most ", limits::kParametersPerJobMax,
                                  " parameter elements in the model, got more"));
    }
    out_.parameters.push_back({parameter.name(),
                               std::move(shape),
                               elements,
                               parameter.kind(),
                               parameter.init(),
                               parameter.statistic_momentum(),
                               {}});
    return absl::OkStatus();
  }

  absl::Status CheckParametersUsed() const {
    if (static_cast<int>(out_.parameters.size()) == graph_.parameters_size()) {
      return absl::OkStatus();
    }
    const std::string& name = graph_.parameters(static_cast<int>(out_.parameters.size())).name();
    return Invalid(absl::StrCat("parameter \"", name, "\" is declared, but no node uses it"));
  }

  absl::Status CheckValuesUsed() const {
    for (size_t i = 0; i + 1 < out_.nodes.size(); ++i) {
      if (!out_.values[out_.nodes[i].output].consumers.empty()) continue;
      return Invalid(absl::StrCat("node \"", out_.nodes[i].name, "\" (",
                                  Rule(out_.nodes[i].kind).name, "): nothing reads its output"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOutputs() {
    if (out_.parameters.empty()) return Invalid("the model has no parameters: nothing to train");
    const auto logits = value_index_.find(graph_.logits());
    const ResolvedNode& loss = out_.nodes.back();
    if (logits == value_index_.end() || logits->second != loss.inputs[0]) {
      return Invalid(absl::StrCat("expected logits to be \"", out_.values[loss.inputs[0]].name,
                                  "\", which the loss reads, got \"",
                                  absl::CHexEscape(graph_.logits()), "\""));
    }
    out_.logits = logits->second;
    out_.classes = graph_.classes();
    const Dims& shape = out_.values[out_.logits].shape;
    const bool classified = loss.kind == OpKind::kSoftmaxCrossEntropy;
    const int64_t expected = classified ? shape.back() : 0;
    if (out_.classes == expected) return absl::OkStatus();
    if (!classified) {
      return Invalid(
          absl::StrCat("expected classes to be 0, as the loss takes none, got ", out_.classes));
    }
    return Invalid(absl::StrCat("node \"", out_.values[out_.logits].name, "\": its ", expected,
                                " outputs are the logits, but the data has ", out_.classes,
                                " classes; both must be equal"));
  }

  absl::Status CheckFrozen() const {
    bool trains = false;
    for (const ResolvedParameter& parameter : out_.parameters) {
      trains |= parameter.kind == TRAINABLE;
    }
    if (!trains) return Invalid("every parameter is frozen: nothing to train");
    for (const BackwardStep& step :
         DeriveBackward(Differentiable(out_), static_cast<int>(out_.values.size()))) {
      if (!UsesFrozenStatistics(out_, step.node)) continue;
      return Invalid(absl::StrCat(
          "node \"", out_.nodes[step.node].name,
          "\" (batchnorm): its statistics are frozen, but "
          "its weight, its bias or a layer before it is not; freeze these too, or leave its "
          "statistics free"));
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  ResolvedGraph out_;
  std::map<std::string, int> value_index_;
  std::map<std::string, int> declared_;
};

}  // namespace

int64_t JudgedLabels(const ResolvedGraph& graph) {
  const OpKind loss = graph.nodes.back().kind;
  const bool judged = loss == OpKind::kSoftmaxCrossEntropy || loss == OpKind::kBinaryCrossEntropy;
  return judged ? graph.values[kLabelValue].elements : 0;
}

int64_t JudgedLabels(const Graph& graph) {
  const absl::StatusOr<ResolvedGraph> resolved = Validate(graph);
  return resolved.ok() ? JudgedLabels(*resolved) : 0;
}

bool UsesFrozenStatistics(const ResolvedGraph& graph, int node) {
  const ResolvedNode& resolved = graph.nodes[node];
  if (resolved.kind != OpKind::kBatchNorm) return false;
  return graph.parameters[resolved.parameters[2]].kind == FROZEN ||
         graph.parameters[resolved.parameters[3]].kind == FROZEN;
}

absl::StatusOr<ResolvedGraph> Validate(const Graph& graph) { return Validator(graph).Run(); }

}  // namespace starling
