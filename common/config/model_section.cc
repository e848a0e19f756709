#include "common/config/model_section.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/schema.h"

namespace starling::config {
namespace {

const std::vector<std::string>& Builtins() {
  static const auto* names = new std::vector<std::string>{"mlp", "lenet", "counter"};
  return *names;
}

// A scalar as the narrowest of integer, number, text.
bool ReadAttribute(const YAML::Node& node, Attribute* out) {
  if (node.IsScalar()) {
    int64_t integer = 0;
    double number = 0;
    bool flag = false;
    if (absl::SimpleAtoi(node.Scalar(), &integer)) out->set_i(integer);
    else if (absl::SimpleAtod(node.Scalar(), &number)) out->set_f(number);
    else if (YAML::convert<bool>::decode(node, flag)) out->set_i(flag ? 1 : 0);
    else out->set_s(node.Scalar());
    return true;
  }
  if (!node.IsSequence()) return false;
  auto* ints = out->mutable_ints();
  for (const auto& item : node) {
    int64_t integer = 0;
    if (!item.IsScalar() || !absl::SimpleAtoi(item.Scalar(), &integer)) return false;
    ints->add_values(integer);
  }
  return true;
}

void ReadLayer(const Section& model, const YAML::Node& node, ModelSource::Layer* layer) {
  layer->set_line(node.Mark().line + 1);
  const auto fail = [&](const std::string& what) {
    if (model.status()->ok()) {
      *model.status() = absl::InvalidArgumentError(absl::StrCat(Where(node, "spec.model.layers"), ": ", what));
    }
  };
  if (node.IsScalar()) {  // "- relu"
    layer->set_op(node.Scalar());
    return;
  }
  if (!node.IsMap() || node.size() != 1) {
    return fail("expected one operator, like \"relu\" or \"conv2d: {out_channels: 32, kernel: 3}\"");
  }
  const auto entry = *node.begin();
  layer->set_op(entry.first.Scalar());
  if (entry.second.IsNull()) return;
  if (!entry.second.IsMap()) return fail(absl::StrCat("expected {attribute: value, ...} behind ", layer->op()));
  for (const auto& attribute : entry.second) {
    const std::string key = attribute.first.Scalar();
    if (key == "name") {
      layer->set_name(attribute.second.IsScalar() ? attribute.second.Scalar() : "");
      if (layer->name().empty()) return fail("expected a text behind name");
    } else if (!ReadAttribute(attribute.second, &(*layer->mutable_attributes())[key])) {
      return fail(absl::StrCat("expected a number, a text or a list of whole numbers for ", layer->op(), ".", key));
    }
  }
}

}  // namespace

void ReadModel(const Section& model, ModelSource* out) {
  if (model.Has("builtin") == model.Has("layers")) {
    model.Fail("builtin", "expected either builtin or layers");
    return;
  }
  if (model.Has("layers")) {
    if (model.Has("hidden")) model.Fail("hidden", "goes with builtin: mlp only");
    const YAML::Node layers = model.node()["layers"];
    if (layers.size() == 0) model.Fail("layers", "expected at least one layer, got none");
    for (const auto& layer : layers) ReadLayer(model, layer, out->add_layers());
    return;
  }
  out->set_builtin(model.Text("builtin", ""));
  const auto& names = Builtins();
  if (std::find(names.begin(), names.end(), out->builtin()) == names.end()) {
    const std::string near = NearestName(out->builtin(), names);
    model.Fail("builtin", absl::StrCat("expected one of ", absl::StrJoin(names, ", "), ", got \"",
                                       out->builtin(), "\"",
                                       near.empty() ? "" : absl::StrCat("; did you mean \"", near, "\"?")));
  }
  if (model.Has("hidden") && out->builtin() != "mlp") model.Fail("hidden", "goes with builtin: mlp only");
  for (int64_t size : model.Integers("hidden", 1, int64_t{1} << 20)) {
    (*out->mutable_arguments())["hidden"].mutable_ints()->add_values(size);
  }
}

}  // namespace starling::config
