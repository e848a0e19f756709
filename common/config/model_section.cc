#include "common/config/model_section.h"

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest_name.h"
#include "common/config/numbers.h"
#include "common/config/paths.h"
#include "common/config/schema.h"
#include "common/graph/builders.h"

namespace starling::config {
namespace {

std::vector<std::string> BuiltinNames() {
  std::vector<std::string> names;
  for (const Builtin& builtin : Builtins()) names.push_back(builtin.name);
  return names;
}

bool Takes(const Builtin& builtin, absl::string_view argument) {
  return absl::c_any_of(builtin.arguments, [&](const BuiltinArgument& candidate) {
    return argument == candidate.name;
  });
}

// "goes with builtin: resnet18, resnet34 only"
std::string GoesWith(const std::string& argument) {
  std::vector<std::string> names;
  for (const Builtin& builtin : Builtins()) {
    if (Takes(builtin, argument)) names.push_back(builtin.name);
  }
  return absl::StrCat("goes with builtin: ", absl::StrJoin(names, ", "), " only");
}

// Reads a scalar as the narrowest of integer, number, text.
bool ReadAttribute(const YAML::Node& node, Attribute* out) {
  if (node.IsScalar()) {
    bool flag = false;
    if (const auto integer = AsInteger(node))
      out->set_i(*integer);
    else if (const auto number = AsNumber(node))
      out->set_f(*number);
    else if (YAML::convert<bool>::decode(node, flag))
      out->set_i(flag ? 1 : 0);
    else
      out->set_s(node.Scalar());
    return true;
  }
  if (!node.IsSequence()) return false;
  auto* ints = out->mutable_ints();
  for (const auto& item : node) {
    const auto integer = AsInteger(item);
    if (!integer) return false;
    ints->add_values(*integer);
  }
  return true;
}

// Reads one name or a list of names.
bool ReadInputs(const YAML::Node& node, ModelSource::Layer* layer) {
  if (node.IsScalar()) {
    layer->add_inputs(node.Scalar());
    return !node.Scalar().empty();
  }
  if (!node.IsSequence() || node.size() == 0) return false;
  for (const auto& item : node) {
    if (!item.IsScalar() || item.Scalar().empty()) return false;
    layer->add_inputs(item.Scalar());
  }
  return true;
}

void ReadLayer(const Section& model, const YAML::Node& node, ModelSource::Layer* layer) {
  layer->set_line(node.Mark().line + 1);
  const auto fail = [&](const std::string& what) {
    if (model.status()->ok()) {
      *model.status() =
          absl::InvalidArgumentError(absl::StrCat(Where(node, "spec.model.layers"), ": ", what));
    }
  };
  if (node.IsScalar()) {  // "- relu"
    layer->set_op(node.Scalar());
    return;
  }
  if (!node.IsMap() || node.size() != 1) {
    return fail(
        "expected one operator, like \"relu\" or \"conv2d: {out_channels: 32, kernel: 3}\"");
  }
  const auto entry = *node.begin();
  layer->set_op(entry.first.Scalar());
  if (entry.second.IsNull())
    return fail(absl::StrCat("expected attributes behind \"", layer->op(),
                             ":\", got nothing: write ", layer->op(), " without the colon"));
  if (!entry.second.IsMap())
    return fail(absl::StrCat("expected {attribute: value, ...} behind ", layer->op()));
  for (const auto& attribute : entry.second) {
    const std::string key = attribute.first.Scalar();
    if (key == "name") {
      layer->set_name(attribute.second.IsScalar() ? attribute.second.Scalar() : "");
      if (layer->name().empty()) return fail("expected a text behind name");
    } else if (key == "parametersOf") {
      layer->set_parameters_of(attribute.second.IsScalar() ? attribute.second.Scalar() : "");
      if (layer->parameters_of().empty())
        return fail("expected a layer's name behind parametersOf");
    } else if (key == "inputs") {
      if (!ReadInputs(attribute.second, layer)) {
        return fail("expected names of layers, or input, behind inputs, like [conv1, input]");
      }
    } else if (!ReadAttribute(attribute.second, &(*layer->mutable_attributes())[key])) {
      return fail(absl::StrCat("expected a number, a text or a list of whole numbers for ",
                               layer->op(), ".", key));
    }
  }
}

// Checks types and which builtin takes which argument; ranges and choices are checked with the
// model.
void ReadArguments(const Section& model, const Builtin* builtin, ModelSource* out) {
  for (const Builtin& candidate : Builtins()) {
    for (const BuiltinArgument& argument : candidate.arguments) {
      if (!model.Has(argument.name)) continue;
      if (builtin == nullptr || !Takes(*builtin, argument.name)) {
        model.Fail(argument.name, GoesWith(argument.name));
        continue;
      }
      if (argument.type == BuiltinArgument::Type::kIntegers) {
        const auto sizes = model.Integers(argument.name, {argument.minimum, argument.maximum});
        auto* const ints = (*out->mutable_arguments())[argument.name].mutable_ints();
        ints->clear_values();
        for (int64_t size : sizes) ints->add_values(size);
      } else {
        ReadAttribute(model.node()[argument.name], &(*out->mutable_arguments())[argument.name]);
      }
    }
  }
}

}  // namespace

void ReadModel(const Section& model, const JobFileOptions& options, ModelSource* out) {
  if (model.Has("init")) out->mutable_init()->set_path(ExpandPath(model, "init", options));
  for (const auto& glob : model.node()["freeze"]) {
    out->add_freeze(glob.Scalar());
    if (glob.Scalar().empty())
      model.Fail("freeze", "expected globs over parameters' names, got an empty one");
  }
  if (model.Has("builtin") == model.Has("layers")) {
    model.Fail("builtin", "expected either builtin or layers");
    return;
  }
  if (model.Has("layers")) {
    ReadArguments(model, nullptr, out);
    const YAML::Node layers = model.node()["layers"];
    if (layers.size() == 0) model.Fail("layers", "expected at least one layer, got none");
    for (const auto& layer : layers) ReadLayer(model, layer, out->add_layers());
    return;
  }
  out->set_builtin(model.node()["builtin"].Scalar());
  const Builtin* const builtin = FindBuiltin(out->builtin());
  if (builtin == nullptr) {
    const std::vector<std::string> names = BuiltinNames();
    model.Fail("builtin", absl::StrCat("expected one of ", absl::StrJoin(names, ", "), ", got \"",
                                       out->builtin(), "\"", DidYouMean(out->builtin(), names)));
    return;
  }
  ReadArguments(model, builtin, out);
}

}  // namespace starling::config
