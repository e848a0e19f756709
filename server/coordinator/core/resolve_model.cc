#include "server/coordinator/core/resolve_model.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/graph/builders.h"
#include "common/graph/graph.h"
#include "common/graph/recompute.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/resolve_model_values.h"

namespace starling::coordinator {
namespace {

absl::StatusOr<LayerDescription> ReadLayer(const ModelSource::Layer& layer) {
  LayerDescription description;
  description.op = layer.op();
  description.name = layer.name();
  description.inputs.assign(layer.inputs().begin(), layer.inputs().end());
  description.parameters_of = layer.parameters_of();
  description.line = layer.line();
  for (const auto& [key, attribute] : layer.attributes()) {
    switch (attribute.value_case()) {
      case Attribute::kI: description.attributes[key] = attribute.i(); break;
      case Attribute::kF: description.attributes[key] = attribute.f(); break;
      case Attribute::kInts:
        description.attributes[key] = std::vector<int64_t>(attribute.ints().values().begin(),
                                                           attribute.ints().values().end());
        break;
      default:
        return absl::InvalidArgumentError(absl::StrCat(
            "model.layers, line ", layer.line(), ": ", layer.op(), ".", key,
            ": expected a number or a list of whole numbers, got \"", attribute.s(), "\""));
    }
  }
  return description;
}

absl::StatusOr<Graph> Build(const ModelInput& input, const ModelSource& source) {
  const std::string loss = source.loss().empty() ? kDefaultLoss : source.loss();
  if (!source.builtin().empty()) {
    return BuildBuiltin(source.builtin(), source.arguments(), input, loss);
  }
  if (source.layers_size() == 0) {
    return absl::InvalidArgumentError("model: expected builtin or layers, got neither");
  }
  std::vector<LayerDescription> layers;
  for (const ModelSource::Layer& layer : source.layers()) {
    STARLING_ASSIGN_OR_RETURN(LayerDescription description, ReadLayer(layer));
    layers.push_back(std::move(description));
  }
  return BuildLayers(input, layers, loss);
}

absl::StatusOr<Dims> SampleShape(const Inspection& inspection, const JobSpec& spec) {
  const Dims read(inspection.sample_shape().begin(), inspection.sample_shape().end());
  if (spec.sample_shape_size() == 0) return read;
  const Dims wanted(spec.sample_shape().begin(), spec.sample_shape().end());
  STARLING_ASSIGN_OR_RETURN(const int64_t elements_wanted, CheckedElements(wanted));
  STARLING_ASSIGN_OR_RETURN(const int64_t elements_read, CheckedElements(read));
  // A worker may report the shape before or after the reshape.
  if (elements_wanted != elements_read) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the sample's shape ", DimsToString(wanted), " has ", elements_wanted,
        " numbers, but a sample of the data has ", elements_read, " (", DimsToString(read), ")"));
  }
  return wanted;
}

absl::StatusOr<ModelInput> InputOf(const Inspection& inspection, const JobSpec& spec) {
  ModelInput input;
  STARLING_ASSIGN_OR_RETURN(input.sample_shape, SampleShape(inspection, spec));
  input.classes = static_cast<int64_t>(inspection.classes());
  input.vocabulary = static_cast<int64_t>(inspection.vocabulary());
  input.samples = static_cast<int64_t>(inspection.train_samples());
  input.label_shape.assign(inspection.label_shape().begin(), inspection.label_shape().end());
  if (inspection.sample_type() == INT32) input.sample_type = INT32;
  if (inspection.label_type() == FLOAT32) input.label_type = FLOAT32;
  return input;
}

}  // namespace

absl::Status ResolveModel(const Inspection& inspection, JobSpec& spec) {
  const bool has_source =
      !spec.model_source().builtin().empty() || spec.model_source().layers_size() > 0;
  if (has_source || spec.model().nodes_size() == 0) {
    STARLING_ASSIGN_OR_RETURN(const ModelInput input, InputOf(inspection, spec));
    STARLING_ASSIGN_OR_RETURN(*spec.mutable_model(), Build(input, spec.model_source()));
    STARLING_RETURN_IF_ERROR(FreezeParameters(spec.model_source(), spec.mutable_model()));
    if (spec.model_source().has_init()) {
      STARLING_RETURN_IF_ERROR(InitFromFile(spec.model_source().init(), spec.mutable_model()));
    }
  }
  STARLING_ASSIGN_OR_RETURN(const ResolvedGraph graph, Validate(spec.model()));
  if (graph.classes > 0 && inspection.classes() > static_cast<uint64_t>(graph.classes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model has ", graph.classes, " classes, but the data has labels up to ",
        inspection.classes() - 1, ": give the last layer ", inspection.classes(), " outputs"));
  }
  return CheckRecompute(OutlineRecompute(graph), spec.recompute());
}

}  // namespace starling::coordinator
