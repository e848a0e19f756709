// starling export: a job's parameters as a safetensors file.
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/placement/layout.h"
#include "common/safetensors/safetensors.h"
#include "common/values/model_file.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/job_values.h"
#include "tools/cli/output.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

// Avoids the exit codes of a job or coordinator that is not found.
absl::Status OfFile(const absl::Status& status) {
  return status.ok() ? status : absl::InternalError(status.message());
}

}  // namespace

int RunExport(const std::string& name, const std::string& file, Client& client, Context& context) {
  std::string words;
  const auto write = [&](const JobReply& job, const ReadPoint& point, const Layout& layout,
                         const auto& read) -> absl::Status {
    auto writer = safetensors::Writer::Create(file, ModelTensors(job.spec().model(), layout),
                                              ModelMetadata(job, point));
    if (!writer.ok()) return OfFile(writer.status());
    STARLING_RETURN_IF_ERROR(read([&](const Slice&, absl::Span<const float> values) {
      return OfFile(writer->AppendFloats(values));
    }));
    words = absl::StrCat("wrote ", CountText(job.status().parameters()), " parameters of ", name,
                         " to ", file, PointText(point));
    return OfFile(writer->Finish());
  };
  const absl::Status status = ReadJobValues(name, client, context, write);
  if (!status.ok()) {
    return Fail(absl::Status(status.code(), absl::StrCat("cannot export ", name, ": ",
                                                         std::string(status.message()))),
                context);
  }
  context.err << words << "\n";
  return kExitOk;
}

}  // namespace starling::cli
