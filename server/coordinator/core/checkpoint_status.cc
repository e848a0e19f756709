// What people see of a job's checkpoints: the last one, its age, and what the next one waits for.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

std::string StageText(CheckpointAttempt::Stage stage) {
  switch (stage) {
    case CheckpointAttempt::Stage::kMaking: return "making";
    case CheckpointAttempt::Stage::kDeciding: return "deciding";
    case CheckpointAttempt::Stage::kCutting: return "cutting";
    case CheckpointAttempt::Stage::kWriting: return "writing";
    case CheckpointAttempt::Stage::kSealing: return "sealing";
    case CheckpointAttempt::Stage::kDropping: return "dropping";
  }
  return "";
}

}  // namespace

// One that is wanted.
std::string Core::WhatCheckpointWaitsFor(const Job& job) const {
  const auto& attempt = job.checkpoint.attempt;
  const std::string& root = options_.checkpoint_root;
  if (!attempt) {
    if (!job.running()) return "the job went back, and has not started again";
    if (!checkpoints_listed_) return NotListedText();
    if (job.next_policy() != nullptr) return "the job's policy is being changed";
    if (now_ < job.checkpoint.retry_at) return "the next attempt comes later";
    if (job.recovering || !job.partitions.AllReported())
      return "not all shards have reported since the coordinator's start";
    return "it is not begun: those of other jobs come first, or shards look for the folder";
  }
  const std::string since = absl::StrFormat(", for %.0f s", SecondsSince(attempt->since));
  switch (attempt->stage) {
    case CheckpointAttempt::Stage::kMaking:
      return absl::StrCat("its folder is made in ", root, since);
    case CheckpointAttempt::Stage::kDeciding:
      return absl::StrCat("workers come to one step", since);
    case CheckpointAttempt::Stage::kCutting:
      return absl::StrCat("the job comes to step ", attempt->step, since);
    case CheckpointAttempt::Stage::kWriting: return absl::StrCat("shards write it", since);
    case CheckpointAttempt::Stage::kSealing: return absl::StrCat("its manifest is written", since);
    case CheckpointAttempt::Stage::kDropping:
      return absl::StrCat("what is left of one that failed is removed from ", root, since);
  }
  return "";
}

void Core::AddCheckpoint(const Job& job, JobStatus& status) const {
  status.set_restored_from(job.stored.description().restore().checkpoint());
  const CheckpointProgress& progress = job.checkpoint;
  const CheckpointInfo* last = LastCheckpoint(checkpoints_, cluster_.cluster(), JobUid(job.uid()));
  if (!job.spec().has_checkpoint() && last == nullptr && !progress.attempt &&
      progress.failures == 0)
    return;
  CheckpointStatus& out = *status.mutable_checkpoint();
  absl::Time created;
  if (last != nullptr) {
    *out.mutable_last() = *last;
    if (absl::ParseTime(absl::RFC3339_full, last->created(), &created, nullptr))
      out.set_age_seconds(std::max(0.0, absl::ToDoubleSeconds(wall() - created)));
    out.set_last_seconds(progress.last_seconds);
  }
  if (progress.due_since != absl::InfiniteFuture())
    out.set_overdue_seconds(SecondsSince(progress.due_since));
  out.set_failures(progress.failures);
  out.set_trouble(progress.trouble);
  if (job.running() && job.spec().has_checkpoint() && progress.failed > 0)
    out.set_failing_seconds(SecondsSince(progress.failing_since));
  if (progress.attempt) out.set_stage(StageText(progress.attempt->stage));
}

}  // namespace starling::coordinator
