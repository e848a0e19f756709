// The file of a job's values that spec.output asks for. The job's state says whether the file waits
// for the job's end, is being written, was written or failed. If the coordinator stops while the
// file is being written, it starts over after its restart.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {

std::string Core::OutputPath(const JobSpec& spec) const {
  // The job was accepted by a coordinator that had a root.
  if (options_.output_root.empty()) return spec.output();
  return absl::StrCat(options_.output_root, options_.output_root.ends_with('/') ? "" : "/",
                      spec.output());
}

// Does not look at the disk: OutputWriter checks the path, including links.
absl::Status Core::CheckOutput(const JobSpec& spec) const {
  if (spec.output().empty()) return absl::OkStatus();
  if (options_.output_root.empty()) {
    return absl::InvalidArgumentError(
        "output: this coordinator writes no files: start it with --output-root DIR, beneath which "
        "jobs may name files; or remove output from the job, and have the client write the file "
        "when the job has ended: starling export JOB -o FILE");
  }
  const auto other = by_output_.find(spec.output());
  // A dry run may test a job that will replace the one of the same name.
  if (other == by_output_.end() || other->second == spec.name()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("output: ", spec.output(), " is job ",
                                                 other->second,
                                                 "'s: name another file, or delete that job"));
}

// Whether the file is the job's, so that no other job may name it.
bool Core::ClaimsOutput(const Job& job) {
  return !job.spec().output().empty() && job.state.output().state() != OutputStatus::FAILED;
}

void Core::PlanOutput(Job& job) const {
  if (job.spec().output().empty()) return;
  job.state.mutable_output()->set_state(OutputStatus::WAITING);
  job.state.mutable_output()->set_path(OutputPath(job.spec()));
}

// Whether the job is over and its values are still needed for its file.
bool Core::AwaitsOutput(const Job& job) {
  const OutputStatus::State state = job.state.output().state();
  return job.over() && (state == OutputStatus::WAITING || state == OutputStatus::WRITING);
}

// Call this when the job's values are settled, or when the job does not succeed.
void Core::BeginOutput(Job& job) {
  if (job.state.output().state() != OutputStatus::WAITING) return;
  if (job.state.state() != SUCCEEDED) {
    return EndOutput(job,
                     absl::FailedPreconditionError(absl::StrCat(
                         "the job is ", JobState_Name(job.state.state()),
                         ": only the values of a job that SUCCEEDED are written automatically")));
  }
  job.state.mutable_output()->set_state(OutputStatus::WRITING);
  Log(job, absl::StrCat("writes its values to ", job.state.output().path()));
  OrderOutput(job);
}

void Core::OrderOutput(Job& job) {
  job.state.mutable_output()->set_path(OutputPath(job.spec()));
  job.output_views = job.views_number;
  outputs_.push_back(DescribeJob(job));
}

void Core::EndOutput(Job& job, const absl::StatusOr<uint64_t>& bytes) {
  OutputStatus& output = *job.state.mutable_output();
  if (!bytes.ok()) by_output_.erase(job.spec().output());
  output.set_state(bytes.ok() ? OutputStatus::WRITTEN : OutputStatus::FAILED);
  if (bytes.ok()) {
    output.set_bytes(*bytes);
    return Log(job, absl::StrCat("wrote its values to ", output.path(), ", ", *bytes, " bytes"));
  }
  const std::string why(bytes.status().message());
  output.set_error(std::string(CutUtf8(why, limits::kFaultBytesMax)));
  Log(job, absl::StrCat("its values were not written to ", output.path(), ": ", output.error()));
}

void Core::On(const event::OutputWritten& event) {
  auto it = jobs_.find(event.job);
  if (it == jobs_.end() || it->second.state.output().state() != OutputStatus::WRITING) return;
  Job& job = it->second;
  // The shard that it was read from may be gone, and another copy have taken over.
  if (!event.bytes.ok() && job.output_views != job.views_number) return OrderOutput(job);
  EndOutput(job, event.bytes);
  SaveState(job);
}

}  // namespace starling::coordinator
