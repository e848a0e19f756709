#include "server/coordinator/core/resolve_model.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/graph/builders.h"
#include "common/graph/graph.h"
#include "common/protocol/limits.h"

namespace starling {
namespace {

absl::StatusOr<LayerDescription> ReadLayer(const ModelSource::Layer& layer) {
  LayerDescription description;
  description.op = layer.op();
  description.name = layer.name();
  for (const auto& [key, attribute] : layer.attributes()) {
    switch (attribute.value_case()) {
      case Attribute::kI:
        description.attributes[key] = attribute.i();
        break;
      case Attribute::kF:
        description.attributes[key] = attribute.f();
        break;
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

absl::StatusOr<Graph> BuildFromLayers(const ModelInput& input, const ModelSource& source) {
  std::vector<LayerDescription> layers;
  for (const ModelSource::Layer& layer : source.layers()) {
    STARLING_ASSIGN_OR_RETURN(LayerDescription description, ReadLayer(layer));
    layers.push_back(std::move(description));
  }
  return BuildLayers(input, layers);
}

absl::StatusOr<Graph> Build(const ModelInput& input, int64_t samples, const ModelSource& source) {
  if (source.builtin() == "counter") return BuildCounter(samples);
  if (source.builtin() == "lenet") return BuildLenet(input);
  if (source.builtin() == "mlp") {
    MlpOptions options;
    const auto hidden = source.arguments().find("hidden");
    if (hidden != source.arguments().end()) {
      const auto& sizes = hidden->second.ints().values();
      options.hidden.assign(sizes.begin(), sizes.end());
    }
    return BuildMlp(input, options);
  }
  if (!source.builtin().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.builtin: expected mlp, lenet or counter, got \"", source.builtin(), "\""));
  }
  if (source.layers_size() == 0) {
    return absl::InvalidArgumentError("model: expected builtin or layers, got neither");
  }
  return BuildFromLayers(input, source);
}

absl::StatusOr<Dims> SampleShape(const Inspection& inspection, const JobSpec& spec) {
  const Dims read(inspection.sample_shape().begin(), inspection.sample_shape().end());
  if (spec.sample_shape_size() == 0) return read;
  const Dims wanted(spec.sample_shape().begin(), spec.sample_shape().end());
  STARLING_ASSIGN_OR_RETURN(const int64_t elements_wanted, CheckedElements(wanted));
  STARLING_ASSIGN_OR_RETURN(const int64_t elements_read, CheckedElements(read));
  // A worker may report the shape as read, or after the reshape.
  if (elements_wanted != elements_read) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the sample's shape ", DimsToString(wanted), " has ", elements_wanted,
        " numbers, but a sample of the data has ", elements_read, " (", DimsToString(read), ")"));
  }
  return wanted;
}

}  // namespace

absl::Status ResolveModel(const Inspection& inspection, JobSpec& spec) {
  const bool has_source =
      !spec.model_source().builtin().empty() || spec.model_source().layers_size() > 0;
  if (has_source || spec.model().nodes_size() == 0) {
    ModelInput input;
    STARLING_ASSIGN_OR_RETURN(input.sample_shape, SampleShape(inspection, spec));
    input.classes = static_cast<int64_t>(inspection.classes());
    STARLING_ASSIGN_OR_RETURN(
        *spec.mutable_model(),
        Build(input, static_cast<int64_t>(inspection.train_samples()), spec.model_source()));
  }
  STARLING_ASSIGN_OR_RETURN(const ResolvedGraph graph, Validate(spec.model()));
  if (graph.classes > 0 && inspection.classes() > static_cast<uint64_t>(graph.classes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model has ", graph.classes, " classes, but the data has labels up to ",
        inspection.classes() - 1, ": give the last layer ", inspection.classes(), " outputs"));
  }
  return absl::OkStatus();
}

}  // namespace starling
