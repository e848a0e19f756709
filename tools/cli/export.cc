// starling export: a job's parameters as a safetensors file.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/placement/layout.h"
#include "common/safetensors/safetensors.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

constexpr absl::Duration kReadDeadline = absl::Minutes(5);
constexpr int kAttempts = 3;  // a copy may be replaced by the next epoch's while it is read
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(300);  // shards report what changed

// The coordinator was reached: another exit code than where it was not.
absl::Status NotUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) ? absl::InternalError(status.message()) : status;
}

// The end's values, or the newest epoch's copy.
absl::StatusOr<ReadPoint> WhatToRead(const JobReply& job) {
  const JobStatus& status = job.status();
  if (IsEnd(status.state()) && job.views_size() > 0) {
    if (job.spec().policy().kind() != Policy::BSP) return ReadPoint();
    // A job may end in the middle of a step: then some slices have sealed it, and others not.
    if (status.has_sealed_steps()) return ReadPoint{.version = status.sealed_steps()};
    return absl::UnavailableError(absl::StrCat(
        "not all shards of ", status.name(),
        " have reported to the coordinator since it started: try again, or see starling get shards"));
  }
  const EpochResult* evaluation = LastEvaluation(status);
  if (status.state() == RUNNING && evaluation != nullptr) return ReadPoint{.epoch = evaluation->epoch()};
  return absl::FailedPreconditionError(absl::StrCat(
      status.name(), " is ", JobState_Name(status.state()),
      status.state() == RUNNING
          ? " and has no complete copy of its parameters yet: wait for an evaluation, or for its end (starling wait "
          : " and has no parameters (see: starling describe job ",
      status.name(), ")"));
}

// What a program that reads only this file needs to use the model.
std::map<std::string, std::string> Metadata(const JobReply& job, const ReadPoint& point) {
  JobSpec preprocessing;
  if (job.spec().has_train()) *preprocessing.mutable_train() = job.spec().train();
  if (job.spec().has_test()) *preprocessing.mutable_test() = job.spec().test();
  if (job.spec().has_normalize()) *preprocessing.mutable_normalize() = job.spec().normalize();
  *preprocessing.mutable_sample_shape() = job.spec().sample_shape();
  const auto all = ToJson(preprocessing);
  nlohmann::ordered_json kept;
  for (const char* key : {"train", "test", "normalize", "sampleShape"}) {
    if (all.contains(key)) kept[key] = all[key];
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {"model", ToJson(job.spec().model()).dump()},
                                                 {"preprocessing", kept.dump()},
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

absl::Status WriteFile(const JobReply& job, const ReadPoint& point, const std::string& path, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const Layout layout, MakeLayout(job.spec().model()));
  STARLING_ASSIGN_OR_RETURN(auto writer, safetensors::Writer::Create(path, Tensors(job.spec().model(), layout),
                                                                     Metadata(job, point)));
  STARLING_RETURN_IF_ERROR(context.read_slices(
      job, layout, point, context.now() + kReadDeadline,
      [&](const Slice&, absl::Span<const float> values) { return writer.AppendFloats(values); }));
  return writer.Finish();
}

}  // namespace

int RunExport(const std::string& name, const std::string& file, Client& client, Context& context) {
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto job = client.GetJob(name);
    if (!job.ok()) return Fail(job.status(), context);
    const auto point = WhatToRead(*job);
    if (!point.ok()) return Fail(NotUnreachable(point.status()), context);
    status = WriteFile(*job, *point, file, context);
    if (status.ok()) {
      context.err << "wrote " << CountText(job->status().parameters()) << " parameters of " << name << " to " << file
                  << (point->epoch ? absl::StrCat(", as they were after epoch ", *point->epoch + 1) : "") << "\n";
      return kExitOk;
    }
    if (!absl::IsAborted(status) || !context.sleep(kBetweenAttempts)) break;
  }
  return Fail(NotUnreachable(absl::Status(
                  status.code(), absl::StrCat("cannot export ", name, ": ", std::string(status.message())))),
              context);
}

}  // namespace starling::cli
