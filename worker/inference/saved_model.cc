#include "worker/inference/saved_model.h"

#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "google/protobuf/util/json_util.h"

namespace starling {
namespace {

constexpr size_t kProblemsShown = 10;

absl::Status FromJson(const safetensors::Reader& file, const char* key,
                      google::protobuf::Message* out) {
  const auto& metadata = file.header().metadata;
  const auto entry = metadata.find(key);
  if (entry == metadata.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file's metadata has no \"", key,
                     "\": it is no export of starling; give the job file that describes its model "
                     "(-f job.yaml)"));
  }
  const auto status = google::protobuf::util::JsonStringToMessage(entry->second, out);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the file's metadata \"", key, "\" cannot be read (made by another version?): ",
                   std::string(status.message().data(), status.message().size())));
}

std::string ShapeText(absl::Span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Why the tensor cannot be the parameter's values; empty if it can.
std::string Problem(const safetensors::TensorInfo* tensor, const ResolvedParameter& parameter) {
  const std::string expected = absl::StrCat("F32 ", DimsToString(parameter.shape));
  if (tensor == nullptr)
    return absl::StrCat(parameter.name, ": expected ", expected, ", not there");
  const bool same_shape =
      tensor->shape.size() == parameter.shape.size() &&
      std::equal(tensor->shape.begin(), tensor->shape.end(), parameter.shape.begin(),
                 [](uint64_t a, int64_t b) { return a == static_cast<uint64_t>(b); });
  if (tensor->dtype == safetensors::DType::kF32 && same_shape) return "";
  return absl::StrCat(parameter.name, ": expected ", expected, ", got ",
                      safetensors::DTypeName(tensor->dtype), " ", ShapeText(tensor->shape));
}

}  // namespace

absl::StatusOr<SavedModel> MakeModel(const JobSpec& spec) {
  SavedModel model;
  model.graph = spec.model();
  STARLING_ASSIGN_OR_RETURN(model.resolved, Validate(model.graph));
  STARLING_ASSIGN_OR_RETURN(model.layout, MakeLayout(model.graph));
  model.preprocessing = PreprocessingOf(spec);
  return model;
}

absl::StatusOr<SavedModel> LoadModel(const safetensors::Reader& file) {
  Graph graph;
  STARLING_RETURN_IF_ERROR(FromJson(file, kModelKey, &graph));
  JobSpec spec;
  STARLING_RETURN_IF_ERROR(FromJson(file, kPreprocessingKey, &spec));
  *spec.mutable_model() = std::move(graph);
  STARLING_ASSIGN_OR_RETURN(SavedModel model, MakeModel(spec));
  STARLING_RETURN_IF_ERROR(ReadValues(file, &model));
  return model;
}

std::vector<std::string> Mismatches(const safetensors::Reader& file, const ResolvedGraph& graph) {
  std::vector<std::string> problems;
  std::set<std::string> known;
  for (const ResolvedParameter& parameter : graph.parameters) {
    known.insert(parameter.name);
    std::string problem = Problem(file.Find(parameter.name), parameter);
    if (!problem.empty()) problems.push_back(std::move(problem));
  }
  for (const safetensors::TensorInfo& tensor : file.header().tensors) {
    if (known.count(tensor.name) > 0) continue;
    if (absl::EndsWith(tensor.name, ".num_batches_tracked")) continue;
    problems.push_back(absl::StrCat(tensor.name, ": the model has none of that name"));
  }
  return problems;
}

absl::Status ReadValues(const safetensors::Reader& file, SavedModel* model) {
  std::vector<std::string> problems = Mismatches(file, model->resolved);
  if (!problems.empty()) {
    const size_t more = problems.size() - std::min(problems.size(), kProblemsShown);
    problems.resize(problems.size() - more);
    return absl::InvalidArgumentError(absl::StrCat(
        "the file's tensors are not those of the model: ", absl::StrJoin(problems, "; "),
        more > 0 ? absl::StrCat("; and ", more, " more") : ""));
  }
  try {  // the allocation has the size that the file claims
    model->values.assign(model->layout.elements, 0);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", model->layout.elements, " parameters"));
  }
  for (size_t i = 0; i < model->resolved.parameters.size(); ++i) {
    const ParameterPlace& place = model->layout.parameters[i];
    float* const to = model->values.data() + place.flat_begin;
    STARLING_RETURN_IF_ERROR(
        file.Read(*file.Find(model->resolved.parameters[i].name), 0,
                  {reinterpret_cast<uint8_t*>(to), place.elements * sizeof(float)}));
  }
  return absl::OkStatus();
}

}  // namespace starling
