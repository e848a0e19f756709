#include "tests/sim/rollback_truth.h"

#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/names.h"
#include "common/protocol/limits.h"

namespace starling::sim {
namespace {

// Longer than the folder is away from a process.
constexpr absl::Duration kFaultLasts = absl::Seconds(1);
// Longer than a coordinator tries to read before it gives up.
constexpr absl::Duration kReadsFor = absl::Minutes(1);

}  // namespace

void RollbackTruth::Violate(uint64_t uid, const std::string& what) {
  world_->Violate(Promise::kGoesBack, absl::StrCat("job ", uid, " ", what));
}

bool RollbackTruth::DiskFailed(absl::Time since) const {
  for (const Fault& fault : world_->faults()) {
    const std::string& kind = fault.id.kind;
    const bool fails = absl::StrContains(kind, "disk") || absl::StrContains(kind, "folder");
    if (!fails || absl::StrContains(kind, "slow")) continue;
    if (absl::UnixEpoch() + fault.at >= since - kFaultLasts) return true;
  }
  return false;
}

void RollbackTruth::OnStored(uint64_t uid, const StoredRun& before, const StoredRun& after,
                             bool no_memory) {
  if (before.state.rollback().empty() && !after.state.rollback().empty())
    OnBegun(uid, before, after, no_memory);
  if (before.description.run().era() != after.description.run().era())
    return OnNextEra(uid, before, after);
  if (before.state.restarts_total() != after.state.restarts_total())
    Violate(uid, "counts a rollback that did not happen");
  if (before.state.restarts() == after.state.restarts()) return;
  const bool anew =
      after.state.restarts() == 0 && checkpoints_->Made(JobUid(uid)) > jobs_[uid].made;
  if (!anew)
    Violate(uid, absl::StrCat("counts ", after.state.restarts(), " rollbacks after ",
                              before.state.restarts(), ", and has no new checkpoint"));
}

// Each loss of both copies, and nothing else, begins one; and so do first values that a disk that
// fails, or a shard without memory, could not take from the checkpoint.
void RollbackTruth::OnBegun(uint64_t uid, const StoredRun& before, const StoredRun& after,
                            bool no_memory) {
  Job& job = jobs_[uid];
  const std::string& what = after.state.rollback();
  const std::vector<View> views(before.state.views().begin(), before.state.views().end());
  const bool lost = absl::StrContains(what, "lost partition")
                        ? is_lost_(views)
                        : after.description.run().era() > 0 && (no_memory || DiskFailed(job.begun));
  if (!lost) Violate(uid, absl::StrCat("goes back, and has lost nothing: ", what));
  job.begun = world_->now();
}

void RollbackTruth::OnNextEra(uint64_t uid, const StoredRun& before, const StoredRun& after) {
  Job& job = jobs_[uid];
  const StoredJobState& was = before.state;
  const StoredJobState& is = after.state;
  const JobSpec& spec = after.description.spec();
  const uint32_t most = spec.has_restarts_max() ? spec.restarts_max() : limits::kRestartsPerJob;
  world_->Count(was.rollback_is_free() ? "rollbacks that do not count" : "rollbacks");
  ++job.rollbacks;
  const bool goes_on = is.state() == PENDING || is.state() == RUNNING;  // it may start at once
  if (was.rollback().empty() || !is.rollback().empty() || !goes_on)
    Violate(uid, "begins an era, and does not go back");
  if (after.description.run().era() != job.rollbacks)
    Violate(uid, absl::StrCat("begins era ", after.description.run().era(), " with rollback ",
                              job.rollbacks));
  const uint32_t counted = was.restarts() + (was.rollback_is_free() ? 0 : 1);
  if (is.restarts() != counted || is.restarts() > most || is.restarts_total() != job.rollbacks) {
    Violate(uid, absl::StrCat("counts ", is.restarts(), " rollbacks of at most ", most, ", ",
                              is.restarts_total(), " in all, expected ", counted, " and ",
                              job.rollbacks));
  }
  CheckCheckpoint(uid, before.description.restore(), after.description.restore());
  job.made = checkpoints_->Made(JobUid(uid));
}

// It is one of this job's, and the newest one that the coordinator could read; or, where there is
// none, the one that the run before began with.
void RollbackTruth::CheckCheckpoint(uint64_t uid, const Restore& before, const Restore& restore) {
  const CheckpointManifest* const made = checkpoints_->Made(restore.checkpoint());
  const bool own = made != nullptr && made->job().run().job_uid() == uid;
  const uint64_t step = own ? made->step() : before.step();
  if ((!own && restore.checkpoint() != before.checkpoint()) || restore.step() != step ||
      restore.mode() != Restore::CONTINUE) {
    return Violate(uid, absl::StrCat("goes back to ", restore.ShortDebugString(),
                                     ", which is not as its checkpoints were made"));
  }
  if (!own) world_->Count("rollbacks to where a job began");
  const std::optional<CheckpointId> newest = checkpoints_->NewestReadable(JobUid(uid));
  if (!newest.has_value() ||
      (own && newest->number <= ParseCheckpointId(restore.checkpoint())->number))
    return;
  if (DiskFailed(jobs_[uid].begun)) return world_->Count("rollbacks past what a disk hid");
  Violate(uid, absl::StrCat("goes back to ", restore.checkpoint(), ", and could to ",
                            ToString(*newest)));
}

void RollbackTruth::OnEnd(const JobStatus& status) {
  const uint32_t rollbacks = jobs_[status.uid()].rollbacks;
  if (status.restarts() != rollbacks || status.era() != rollbacks) {
    Violate(status.uid(), absl::StrCat("went back ", rollbacks, " times, and says ",
                                       status.restarts(), " in era ", status.era()));
  }
  if (rollbacks > 0 && status.state() == SUCCEEDED)
    world_->Count("jobs that went back and succeeded");
  if (status.state() != FAILED || !absl::StrContains(status.reason(), "lost partition")) return;
  if (absl::StrContains(status.reason(), "(maxRestarts"))
    return world_->Count("jobs that may not go back again");
  const std::optional<CheckpointId> newest = checkpoints_->NewestReadable(JobUid(status.uid()));
  if (!newest.has_value() || DiskFailed(world_->now() - kReadsFor)) return;
  Violate(status.uid(),
          absl::StrCat("ended, and could go back to ", ToString(*newest), ": ", status.reason()));
}

}  // namespace starling::sim
