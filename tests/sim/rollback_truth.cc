#include "tests/sim/rollback_truth.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/names.h"
#include "common/protocol/limits.h"

namespace starling::sim {
namespace {

// As often must the coordinator fail to read a checkpoint before it reads an older one.
constexpr int64_t kReadTries = 3;

struct Cause {
  absl::string_view kind;  // of fault
  absl::Duration lasts;    // at most
};

// What keeps a shard from making the first values of its partitions.
constexpr Cause kNoFirstValues[] = {
    {"disk error of a shard", absl::ZeroDuration()},
    {"crash of the disk's machine", absl::ZeroDuration()},
    {"checkpoint folder that is not mounted", kUnmountedMost},
    {"shard without memory", kNoMemoryMost},
};
// What keeps the coordinator from reading a checkpoint once.
constexpr Cause kFailedRead[] = {
    {"disk error of the coordinator", absl::ZeroDuration()},
    {"crash of the disk's machine", absl::ZeroDuration()},
};

// Whether a fault of this kind, which happened at `at`, is one of the causes and was not over.
bool IsOneOf(absl::Span<const Cause> causes, absl::string_view kind, absl::Duration at,
             absl::Time since) {
  return std::any_of(causes.begin(), causes.end(), [&](const Cause& cause) {
    return cause.kind == kind && absl::UnixEpoch() + at + cause.lasts >= since;
  });
}

}  // namespace

void RollbackTruth::Violate(uint64_t uid, const std::string& what) {
  world_->Violate(Promise::kGoesBack, absl::StrCat("job ", uid, " ", what));
}

bool RollbackTruth::LacksFirstValues(absl::string_view what, absl::Time since) const {
  return std::any_of(world_->faults().begin(), world_->faults().end(), [&](const Fault& fault) {
    const bool there =
        fault.who == "disk" || absl::StrContains(what, absl::StrCat(" on ", fault.who, ": "));
    return there && IsOneOf(kNoFirstValues, world_->KindOf(fault), fault.at, since);
  });
}

int64_t RollbackTruth::FailedReads(absl::Time since) const {
  return std::count_if(world_->faults().begin(), world_->faults().end(), [&](const Fault& fault) {
    return IsOneOf(kFailedRead, world_->KindOf(fault), fault.at, since);
  });
}

void RollbackTruth::OnStored(uint64_t uid, const StoredRun& before, const StoredRun& after) {
  if (before.state.rollback().empty() && !after.state.rollback().empty())
    OnBegun(uid, before, after);
  if (before.description.run().era() != after.description.run().era())
    return OnNextEra(uid, before, after);
  if (before.state.restarts_total() != after.state.restarts_total())
    Violate(uid, "counts a rollback that did not happen");
  if (before.state.restarts() == after.state.restarts()) return;
  const bool anew =
      after.state.restarts() == 0 && checkpoints_->CountMade(JobUid(uid)) > jobs_[uid].made;
  if (!anew)
    Violate(uid, absl::StrCat("counts ", after.state.restarts(), " rollbacks after ",
                              before.state.restarts(), ", and has no new checkpoint"));
}

// Each loss of both copies, and nothing else, begins one; and so do first values that a shard could
// not take from the checkpoint, for the disk or for want of memory.
void RollbackTruth::OnBegun(uint64_t uid, const StoredRun& before, const StoredRun& after) {
  Job& job = jobs_[uid];
  const std::string& what = after.state.rollback();
  const std::vector<View> views(before.state.views().begin(), before.state.views().end());
  const bool lost = absl::StrContains(what, "lost partition")
                        ? is_lost_(views)
                        : job.rollbacks > 0 && LacksFirstValues(what, job.begun);
  if (!lost) Violate(uid, absl::StrCat("goes back, and has lost nothing: ", what));
  job.lost = world_->now();
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
  if (!job.first) job.first = before.description.restore();
  if (after.description.restore().checkpoint().empty()) {
    CheckBeginsAgain(uid, *job.first);
  } else {
    CheckCheckpoint(uid, *job.first, after.description.restore());
  }
  job.made = checkpoints_->CountMade(JobUid(uid));
  job.begun = world_->now();
}

// It began so, and no checkpoint of it is left, whatever a disk hides.
void RollbackTruth::CheckBeginsAgain(uint64_t uid, const Restore& first) {
  world_->Count("rollbacks to first values");
  const std::optional<CheckpointId> newest = checkpoints_->NewestReadable(JobUid(uid));
  if (first.checkpoint().empty() && !newest.has_value()) return;
  Violate(uid, absl::StrCat("begins again, and could go back to ",
                            newest.has_value() ? ToString(*newest) : first.checkpoint()));
}

// It is one of this job's, and the newest one that the coordinator could read; or, where there is
// none, the one that the job began with.
void RollbackTruth::CheckCheckpoint(uint64_t uid, const Restore& first, const Restore& restore) {
  const CheckpointManifest* const made = checkpoints_->Made(restore.checkpoint());
  const bool own = made != nullptr && made->job().run().job_uid() == uid;
  const uint64_t step = own ? made->step() : first.step();
  if ((!own && restore.checkpoint() != first.checkpoint()) || restore.step() != step ||
      restore.mode() != Restore::CONTINUE) {
    return Violate(uid, absl::StrCat("goes back to ", restore.ShortDebugString(),
                                     ", which is not as its checkpoints were made"));
  }
  if (!own) world_->Count("rollbacks to where a job began");
  const std::optional<CheckpointId> newest = checkpoints_->NewestReadable(JobUid(uid));
  if (!newest.has_value() ||
      (own && newest->number <= ParseCheckpointId(restore.checkpoint())->number))
    return;
  if (FailedReads(jobs_[uid].lost) >= kReadTries)
    return world_->Count("rollbacks past what a disk hid");
  Violate(uid, absl::StrCat("goes back to ", restore.checkpoint(), ", and could to ",
                            ToString(*newest)));
}

bool RollbackTruth::EndedWithoutFirstValues(const JobStatus& status) const {
  const auto job = jobs_.find(status.uid());
  return job != jobs_.end() && job->second.rollbacks > 0 &&
         absl::StrContains(status.reason(), "(maxRestarts") &&
         LacksFirstValues(status.reason(), job->second.begun);
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
  const bool from_seed = rollbacks > 0 ? jobs_[status.uid()].first->checkpoint().empty()
                                       : status.restored_from().empty();
  const bool begins = from_seed && !absl::StrContains(status.reason(), " cannot be read: ");
  if (!newest.has_value() && !begins) return;
  Violate(status.uid(), absl::StrCat("ended, and could ",
                                     newest.has_value() ? "go back to " + ToString(*newest)
                                                        : std::string("begin again"),
                                     ": ", status.reason()));
}

}  // namespace starling::sim
