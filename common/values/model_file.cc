#include "common/values/model_file.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/message_json.h"

namespace starling {

JobSpec PreprocessingOf(const JobSpec& spec) {
  JobSpec out;
  if (spec.has_train()) *out.mutable_train() = spec.train();
  if (spec.has_test()) *out.mutable_test() = spec.test();
  if (spec.has_normalize()) *out.mutable_normalize() = spec.normalize();
  *out.mutable_sample_shape() = spec.sample_shape();
  return out;
}

// What a program needs to use the model if it reads only the file.
std::map<std::string, std::string> ModelMetadata(const JobReply& job, const ReadPoint& point) {
  const auto all = ToJson(PreprocessingOf(job.spec()));
  nlohmann::ordered_json kept;
  for (const char* key : {"train", "test", "normalize", "sampleShape"}) {
    if (all.contains(key)) kept[key] = all[key];
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {kModelKey, ToJson(job.spec().model()).dump()},
                                                 {kPreprocessingKey, kept.dump()},
                                                 {"job", job.status().name()},
                                                 {"seed", absl::StrCat(job.spec().seed())}};
  if (point.epoch) {
    metadata["epochs"] = absl::StrCat(*point.epoch + 1);
  } else if (!point.versions.empty()) {
    metadata["step"] = absl::StrCat(point.versions.begin()->second);
  } else {
    metadata["step"] = absl::StrCat(job.status().step());
  }
  return metadata;
}

std::vector<safetensors::TensorInfo> ModelTensors(const Graph& model, const Layout& layout) {
  std::vector<int> order(model.parameters_size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return layout.parameters[a].flat_begin < layout.parameters[b].flat_begin;
  });
  std::vector<safetensors::TensorInfo> tensors;
  for (int index : order) {
    const Parameter& parameter = model.parameters(index);
    tensors.push_back(
        {.name = parameter.name(), .shape = {parameter.shape().begin(), parameter.shape().end()}});
  }
  return tensors;
}

}  // namespace starling
