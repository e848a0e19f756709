// starling export: a job's parameters as a safetensors file.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/placement/layout.h"
#include "common/safetensors/safetensors.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/job_values.h"
#include "tools/cli/output.h"
#include "tools/cli/verbs.h"
#include "worker/inference/saved_model.h"

namespace starling::cli {
namespace {

// What a program that reads only this file needs to use the model.
std::map<std::string, std::string> Metadata(const JobReply& job, const ReadPoint& point) {
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
  } else if (point.version) {
    metadata["step"] = absl::StrCat(*point.version);
  } else {
    metadata["step"] = absl::StrCat(job.status().step());
  }
  return metadata;
}

// In the order of the flat buffer, so that slices can be written as they come.
std::vector<safetensors::TensorInfo> Tensors(const Graph& model, const Layout& layout) {
  std::vector<int> order(model.parameters_size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return layout.parameters[a].flat_begin < layout.parameters[b].flat_begin;
  });
  std::vector<safetensors::TensorInfo> tensors;
  for (int index : order) {
    const Parameter& parameter = model.parameters(index);
    tensors.push_back({.name = parameter.name(), .shape = {parameter.shape().begin(), parameter.shape().end()}});
  }
  return tensors;
}

}  // namespace

int RunExport(const std::string& name, const std::string& file, Client& client, Context& context) {
  std::string words;
  const auto write = [&](const JobReply& job, const ReadPoint& point, const Layout& layout,
                         const auto& read) -> absl::Status {
    STARLING_ASSIGN_OR_RETURN(auto writer, safetensors::Writer::Create(file, Tensors(job.spec().model(), layout),
                                                                       Metadata(job, point)));
    STARLING_RETURN_IF_ERROR(
        read([&](const Slice&, absl::Span<const float> values) { return writer.AppendFloats(values); }));
    words = absl::StrCat("wrote ", CountText(job.status().parameters()), " parameters of ", name, " to ", file,
                         PointText(point));
    return writer.Finish();
  };
  const absl::Status status = ReadJobValues(name, client, context, write);
  if (!status.ok()) {
    return Fail(absl::Status(status.code(), absl::StrCat("cannot export ", name, ": ", std::string(status.message()))),
                context);
  }
  context.err << words << "\n";
  return kExitOk;
}

}  // namespace starling::cli
