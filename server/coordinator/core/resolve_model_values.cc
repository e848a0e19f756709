#include "server/coordinator/core/resolve_model_values.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/glob.h"
#include "common/graph/operators.h"

namespace starling::coordinator {
namespace {

constexpr size_t kMismatchesShown = 50;

std::string ShapeText(const google::protobuf::RepeatedField<int64_t>& shape) {
  return DimsToString(Dims(shape.begin(), shape.end()));
}

std::string FirstNames(const Graph& graph) {
  std::vector<std::string> names;
  for (int p = 0; p < graph.parameters_size() && p < 6; ++p) {
    names.push_back(graph.parameters(p).name());
  }
  return absl::StrCat(absl::StrJoin(names, ", "), graph.parameters_size() > 6 ? ", ..." : "");
}

// Why the tensor does not fit the parameter; empty: it does.
std::string Mismatch(const Parameter& parameter, const InitFile::Tensor& tensor) {
  const Dims wanted(parameter.shape().begin(), parameter.shape().end());
  const Dims found(tensor.shape().begin(), tensor.shape().end());
  if (wanted == found && tensor.type() == "F32") return "";
  return absl::StrCat(parameter.name(), ": expected F32 ", ShapeText(parameter.shape()), ", got ",
                      tensor.type(), " ", ShapeText(tensor.shape()));
}

}  // namespace

absl::Status FreezeParameters(const ModelSource& source, Graph* graph) {
  for (const std::string& glob : source.freeze()) {
    bool fits = false;
    for (Parameter& parameter : *graph->mutable_parameters()) {
      if (!MatchesGlob(glob, parameter.name())) continue;
      parameter.set_kind(FROZEN);
      fits = true;
    }
    if (fits) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "model.freeze: \"", glob, "\" matches no parameter; there are ", FirstNames(*graph)));
  }
  return absl::OkStatus();
}

absl::Status InitFromFile(const InitFile& file, Graph* graph) {
  std::map<std::string, const InitFile::Tensor*> tensors;
  for (const InitFile::Tensor& tensor : file.tensors()) tensors[tensor.name()] = &tensor;
  std::vector<std::string> mismatches;
  for (Parameter& parameter : *graph->mutable_parameters()) {
    const auto found = tensors.find(parameter.name());
    if (found == tensors.end()) {
      mismatches.push_back(absl::StrCat(parameter.name(), ": expected F32 ",
                                        ShapeText(parameter.shape()), ", got nothing"));
      continue;
    }
    const std::string mismatch = Mismatch(parameter, *found->second);
    if (!mismatch.empty()) mismatches.push_back(mismatch);
    Initializer& init = *parameter.mutable_init();
    init.Clear();
    init.set_kind(Initializer::FILE);
    init.set_file_offset(found->second->offset());
    init.set_file_digest(found->second->digest());
    tensors.erase(found);
  }
  for (const auto& [name, tensor] : tensors) {
    if (absl::EndsWith(name, ".num_batches_tracked")) continue;
    mismatches.push_back(absl::StrCat(name, ": the model has no such parameter, got ",
                                      tensor->type(), " ", ShapeText(tensor->shape())));
  }
  graph->set_init_file(file.path());
  if (mismatches.empty()) return absl::OkStatus();
  const size_t count = mismatches.size();
  if (count > kMismatchesShown) mismatches.resize(kMismatchesShown);
  return absl::InvalidArgumentError(absl::StrCat(
      "model.init: ", file.path(), " does not fit the model in ", count, " tensors:\n  ",
      absl::StrJoin(mismatches, "\n  "), count > kMismatchesShown ? "\n  ..." : ""));
}

}  // namespace starling::coordinator
