// A job whose values are lost, or not to be trusted, goes back to its newest checkpoint
// (docs/decisions/0013-checkpoints.md, part 4).
//
//   RUNNING ── values lost, not finite ──> PENDING, rolls back
//   PENDING, rolls back ── manifest read ──> PENDING, of the next era
//   PENDING, rolls back ── there is no checkpoint ──> PENDING, of the next era, at step 0
//   PENDING, rolls back ── no checkpoint can be read ──> FAILED
//
// One without a checkpoint of its own goes back to the one that it began with, if it did; so it
// does when it has none any more. A job that began with the values of its seed begins with them
// again.
//
// From the loss on no shard leads a partition of the old era and no worker is its member, so
// nothing of it counts. What else is known of the job is replaced when the manifest has been read,
// in one batch with the next era. The scheduler does not start it before.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"
#include "server/coordinator/core/records.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kReadAgain = absl::Seconds(10);  // what a disk could not read
constexpr int kReadTries = 3;                             // before an older one

uint32_t RestartsMax(const JobSpec& spec) {
  return spec.has_restarts_max() ? spec.restarts_max() : limits::kRestartsPerJob;
}

// Not of what is on disk, but of the disk: another attempt may succeed.
bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status) || absl::IsCancelled(status) ||
         absl::IsPermissionDenied(status);
}

// Its newest checkpoint only lacks its manifest, for which the disk has been asked.
bool IsSealing(const Job& job) {
  const auto& attempt = job.checkpoint.attempt;
  return attempt && attempt->stage == CheckpointAttempt::Stage::kSealing;
}

}  // namespace

bool Core::RollsBack(const Job& job) { return !job.state.rollback().empty(); }

bool Core::IsOwn(const Job& job, const CheckpointId& id) const {
  return id.cluster == cluster_.cluster() && id.job.value == job.uid();
}

// What it was submitted with, whatever it has gone back to since.
const Restore& Core::FirstSource(const Job& job) {
  return job.stored.has_first_source() ? job.stored.first_source()
                                       : job.stored.description().restore();
}

// What the job goes back to: the newest of its own checkpoints whose number is less than `below`,
// else, unless that is 0, the one that it began with. Null: none is known.
const CheckpointInfo* Core::FindToGoBackTo(const Job& job, uint64_t below) const {
  const CheckpointInfo* const own =
      LastCheckpoint(checkpoints_, cluster_.cluster(), JobUid(job.uid()), below);
  if (own != nullptr || below == 0) return own;
  const auto first = ParseCheckpointId(FirstSource(job).checkpoint());
  const auto found = first && !IsOwn(job, *first) ? checkpoints_.find(*first) : checkpoints_.end();
  return found == checkpoints_.end() ? nullptr : &found->second;
}

// "checkpoint ID cannot be read: WHY", of its newest own one, else of the one that it began with.
// Empty: none of them is known to be there, or to have been there, and unreadable.
std::string Core::UnreadableText(const Job& job) const {
  const CheckpointId after{cluster_.cluster(), JobUid(job.uid()), UINT64_MAX};
  auto found = unreadable_checkpoints_.lower_bound(after);
  const bool own = found != unreadable_checkpoints_.begin() && IsOwn(job, (--found)->first);
  if (!own) {
    const auto first = ParseCheckpointId(FirstSource(job).checkpoint());
    found = first ? unreadable_checkpoints_.find(*first) : unreadable_checkpoints_.end();
  }
  if (found == unreadable_checkpoints_.end()) {
    if (job.state.sealed_checkpoint() == 0) return "";
    const CheckpointId lost{cluster_.cluster(), JobUid(job.uid()), job.state.sealed_checkpoint()};
    return absl::StrCat("checkpoint ", ToString(lost), " cannot be read: it was beneath ",
                        options_.checkpoint_root, ", and is there no more");
  }
  return absl::StrCat("checkpoint ", ToString(found->first), " cannot be read: ", found->second);
}

// Whether it begins with the values of its seed again, since there is nothing to go back to. What
// is there and cannot be read, or not by this coordinator, is not thrown away.
bool Core::BeginsAgain(const Job& job) const {
  if (!FirstSource(job).checkpoint().empty() || !job.rollback.trouble.empty()) return false;
  if (options_.checkpoint_root.empty()) return job.state.last_checkpoint() == 0;
  return checkpoints_listed_ && !IsSealing(job) && FindToGoBackTo(job) == nullptr &&
         UnreadableText(job).empty();
}

// `counts`: among those that maxRestarts limits. Before the disk has said what is there, there may
// be a checkpoint.
bool Core::MayRollBack(const Job& job, bool counts) const {
  const uint32_t most = RestartsMax(job.spec());
  if (most == 0 || (counts && job.state.restarts() >= most)) return false;
  if (options_.checkpoint_root.empty()) return BeginsAgain(job);
  return !checkpoints_listed_ || IsSealing(job) || FindToGoBackTo(job) != nullptr ||
         BeginsAgain(job);
}

// Of a job that ends, like the next; empty: from nothing.
std::string Core::HowToContinue(const Job& job) const {
  const CheckpointInfo* last = FindToGoBackTo(job);
  if (last == nullptr || StartsOver(job, *ParseCheckpointId(last->id()))) return "";
  return absl::StrCat("; it can be continued from checkpoint ", last->id(),
                      " (starling checkpoint restore)");
}

// Of a job that may not. Empty: there is nothing to go back to, and nothing to begin with.
std::string Core::WhyNoRollback(const Job& job) const {
  if (options_.checkpoint_root.empty() && job.state.last_checkpoint() > 0) {
    return "; this coordinator was started without --checkpoint-root, beneath which the job's "
           "checkpoints are";
  }
  const bool nothing = FindToGoBackTo(job) == nullptr;
  const std::string unreadable = nothing ? UnreadableText(job) : "";
  if (!unreadable.empty()) return absl::StrCat("; ", unreadable);
  const uint32_t most = RestartsMax(job.spec());
  if (most > 0 && job.state.restarts() < most) return "";
  const std::string from = HowToContinue(job);
  if (most == 0) {
    return absl::StrCat("; the job does not ", nothing ? "begin again" : "go back",
                        " by itself (maxRestarts: 0)", from);
  }
  return absl::StrCat("; the job has ", nothing ? "begun again " : "gone back ",
                      job.state.restarts(), job.state.restarts() == 1 ? " time" : " times",
                      nothing ? " without taking a checkpoint" : " since it last took a checkpoint",
                      ", which is the maximum (maxRestarts)", from);
}

// `counts`: see MayRollBack. `wait`: before the checkpoint is read.
void Core::BeginRollback(Job& job, const std::string& what, bool counts, absl::Duration wait) {
  const int64_t running_us = RunningMicros(job);
  auto& attempt = job.checkpoint.attempt;
  // What only lacks its manifest gets it, and is what the job goes back to.
  if (attempt && !attempt->given_up && attempt->stage != CheckpointAttempt::Stage::kSealing &&
      attempt->stage != CheckpointAttempt::Stage::kDropping)
    NoCheckpointYet(job, "the job goes back", absl::ZeroDuration());
  ChangeViews(job, [&] {
    SetState(job, PENDING);
    job.state.set_running_us(running_us);
    job.state.set_reason(what);
    job.state.set_rollback(what);
    job.state.set_rollback_is_free(!counts);
    job.state.clear_views();
    job.state.clear_values();
    job.state.mutable_roster()->set_number(job.state.roster().number() + 1);
    job.state.mutable_roster()->clear_members();
  });
  ReleaseRun(job);
  job.rollback = {};
  job.rollback.begun = now_;
  job.rollback.again_at = now_ + wait;
  job.checkpoint.due_since = absl::InfiniteFuture();
  job.checkpoint.misses = job.checkpoint.failed = 0;
  job.partitions = PartitionReports(job.partition_elements.size());
  job.undecided.clear();
  job.pending_since = now_;
  job.told_waiting = job.has_turn = false;
  job.unreplicated_since = job.unserved_since = absl::InfiniteFuture();
  Log(job, absl::StrCat(what, BeginsAgain(job) ? ": there is no checkpoint to go back to"
                                               : ": goes back to its last checkpoint"));
  schedule_ = true;
  AdvanceRollback(job);
}

// Asks for the manifest of the newest checkpoint that was not tried yet, or begins again.
void Core::AdvanceRollback(Job& job) {
  if (!RollsBack(job) || job.rollback.reading || now_ < job.rollback.again_at) return;
  if (BeginsAgain(job)) {
    // What was lost is durable before the next era is.
    if (now_ > job.rollback.begun) RollBack(job, std::nullopt, CheckpointManifest());
    return;
  }
  if (options_.checkpoint_root.empty()) {
    return End(job, FAILED, absl::StrCat(job.state.rollback(), WhyNoRollback(job)));
  }
  if (!checkpoints_listed_) return;
  if (IsSealing(job)) return;
  if (const CheckpointInfo* next = FindToGoBackTo(job, job.rollback.tried_from)) {
    job.rollback.reading = ParseCheckpointId(next->id());
    job.rollback.manifest_digest = next->manifest_digest();
    job.rollback.since = now_;
    if (being_read_.insert(*job.rollback.reading).second) {
      disk_actions_.push_back(action::ReadCheckpoint{
          *next, cluster_.cluster(),
          checkpoints_marked_.ok() ? options_.checkpoint_nonce : uint64_t{0}});
    }
    return;
  }
  // Those that are still known may be read later.
  if (FindToGoBackTo(job) == nullptr) {
    // There may be others: somebody has put an older copy of the folder in its place.
    if (!job.rollback.trouble.empty() && !std::exchange(job.rollback.listed_again, true)) {
      list_checkpoints_at_ = now_;
      job.rollback.tried_from = UINT64_MAX;
      job.rollback.again_at = now_ + kReadAgain;
      return;
    }
    const std::string why =
        job.rollback.trouble.empty() ? UnreadableText(job) : job.rollback.trouble;
    return End(job, FAILED, absl::StrCat(job.state.rollback(), why.empty() ? "" : "; ", why));
  }
  job.rollback.tried_from = UINT64_MAX;
  job.rollback.again_at = now_ + kReadAgain;
}

// Several jobs may have begun with the same one: it is read once for all of them.
void Core::On(const event::CheckpointRead& event) {
  being_read_.erase(event.id);
  if (absl::IsAborted(event.manifest.status())) DoubtMark();
  for (Job* const job : JobsIn(PENDING)) {
    if (job->rollback.reading == event.id) TakeRead(*job, event.id, event.manifest);
  }
}

void Core::TakeRead(Job& job, const CheckpointId& id,
                    const absl::StatusOr<CheckpointManifest>& manifest) {
  job.rollback.reading.reset();
  absl::Status status = manifest.status();
  if (status.ok() && !StartsOver(job, id)) status = CheckContinues(job, *manifest);
  if (status.ok()) return RollBack(job, id, *manifest);
  const std::string why(CutUtf8(status.message(), limits::kFaultBytesMax));
  std::string trouble = absl::StrCat("checkpoint ", ToString(id), " cannot be read: ", why);
  if (trouble != job.rollback.trouble) Log(job, trouble);
  job.rollback.trouble = std::move(trouble);
  // A folder that is not mounted says nothing of what is in it.
  if (absl::IsAborted(status) || (MayPass(status) && ++job.rollback.tries < kReadTries)) {
    job.rollback.again_at = now_ + kReadAgain;
    return;
  }
  job.rollback.tries = 0;
  job.rollback.tried_from = IsOwn(job, id) ? id.number : 0;
  if (!MayPass(status) && checkpoints_.erase(id) > 0) unreadable_checkpoints_[id] = why;
  AdvanceRollback(job);
}

// Whether it is the checkpoint of another job, with the values of which this one began at step 0.
bool Core::StartsOver(const Job& job, const CheckpointId& id) const {
  return !IsOwn(job, id) && FirstSource(job).mode() != Restore::CONTINUE;
}

// The manifest counts for what it says of the job, not only for being whole.
absl::Status Core::CheckContinues(const Job& job, const CheckpointManifest& manifest) {
  if (manifest.step() < job.steps() && manifest.policy().kind() != Policy::KIND_UNSPECIFIED)
    return CheckManifestNumbers(manifest, job.epoch_steps());
  return absl::InvalidArgumentError(absl::StrCat("it is of step ", manifest.step(), " of a job of ",
                                                 job.steps(), " steps, under policy ",
                                                 Policy::Kind_Name(manifest.policy().kind())));
}

// What was reported behind the cut counts no more. Returns the changes of the policy there.
std::vector<std::string> Core::VoidBehind(Job& job, const CheckpointManifest& manifest) {
  std::vector<std::string> policies;
  for (int i = 1; i < job.state.policies_size(); ++i) {  // the first is that of this era's begin
    const PolicyRecord& record = job.state.policies(i).record();
    if (record.checkpoint() || IsOfWallTime(record)) continue;
    const std::string policy = PolicyText(record.policy());
    const bool behind = !record.has_step() || record.step() > manifest.step();
    const bool there = record.step() == manifest.step() && policy != PolicyText(manifest.policy());
    if (behind || there) policies.push_back(policy);
  }
  for (const auto& [epoch, result] : job.results) Delete(records::JobResult(job.uid(), epoch));
  job.results.clear();
  job.tested.clear();
  DeleteCurve(job);
  job.curve_chunks = 0;
  job.state.clear_policies();
  StartPolicies(job);
  job.state.clear_stopping();
  job.state.clear_training_end();
  job.state.clear_train_loss();
  job.loss.reset();
  job.windows_kept = 0;
  job.guarded_policy.clear();
  job.last_cut = job.staffed = job.stepped = absl::Time();
  job.steps_seen = 0;
  job.checkpoint.paced = absl::Time();
  job.checkpoint.recent_steps = 0;
  return policies;
}

// To the checkpoint; without one to the values of its seed. All is durable at once, before anyone
// hears of the era.
void Core::RollBack(Job& job, const std::optional<CheckpointId>& id,
                    const CheckpointManifest& source) {
  const bool over = !id || StartsOver(job, *id);
  CheckpointManifest first;  // nothing is done yet
  *first.mutable_policy() = job.spec().policy();
  if (!id) first.set_running_us(job.state.running_us());  // or a limit of it would not end the job
  const CheckpointManifest& manifest = over ? first : source;
  JobDescription& description = *job.stored.mutable_description();
  description.mutable_run()->set_era(description.run().era() + 1);
  if (!id) {
    description.clear_restore();
  } else if (IsOwn(job, *id)) {
    if (!job.stored.has_first_source())
      *job.stored.mutable_first_source() = description.restore();  // none, perhaps
    Restore restore;
    restore.set_checkpoint(manifest.id());
    restore.set_manifest_digest(job.rollback.manifest_digest);
    restore.set_mode(Restore::CONTINUE);
    restore.set_updates_before(manifest.job().restore().updates_before());
    *description.mutable_restore() = restore;
  } else if (job.stored.has_first_source()) {
    *description.mutable_restore() = job.stored.first_source();
  }
  const std::vector<std::string> policies = VoidBehind(job, manifest);
  if (over) {
    SetProgress(manifest, job);
  } else {
    ContinueFrom(manifest, job);
  }

  const bool free = job.state.rollback_is_free();
  job.state.clear_rollback_is_free();
  if (!free) job.state.set_restarts(job.state.restarts() + 1);
  job.state.set_restarts_total(job.state.restarts_total() + 1);
  const std::string what = std::exchange(*job.state.mutable_rollback(), "");
  const std::string back = absl::StrCat(
      id ? absl::StrCat("goes back to step ", manifest.step(), ", checkpoint ", ToString(*id))
         : std::string("begins again with its first values, at step 0"),
      free ? std::string(" (which does not count, as the shard was asked to stop)")
           : absl::StrCat(" (", job.state.restarts(), " of at most ", RestartsMax(job.spec()),
                          " times without a new checkpoint)"),
      policies.empty() ? ""
                       : absl::StrCat("; what was asked for behind that is void: policy ",
                                      absl::StrJoin(policies, ", ")));
  job.state.set_reason(absl::StrCat(what, ": ", back));
  job.state.set_last_restart(absl::StrCat(TimeText(wall()), ": ", job.state.reason()));
  Put(records::Job(job.uid()), job.stored.SerializeAsString());
  for (const auto& [epoch, result] : job.results)
    Put(records::JobResult(job.uid(), epoch), result.SerializeAsString());
  SaveState(job);
  SaveCurve(job);
  Log(job, back);
  job.rollback = {};
  schedule_ = true;
}

// Of a job that rolls back.
std::string Core::WhatRollbackWaitsFor(const Job& job) const {
  if (job.rollback.reading) {
    return absl::StrCat(
        "reads checkpoint ", ToString(*job.rollback.reading), " in ", options_.checkpoint_root,
        ", for ", absl::FormatDuration(absl::Floor(now_ - job.rollback.since, absl::Seconds(1))));
  }
  if (BeginsAgain(job)) return "begins again with its first values";
  if (!checkpoints_listed_) return NotListedText();
  const std::string& trouble = job.rollback.trouble;
  if (!trouble.empty() || now_ < job.rollback.again_at)
    return absl::StrCat(trouble, trouble.empty() ? "" : "; ", "tries again in ",
                        absl::FormatDuration(kReadAgain), " at most");
  return "waits for the checkpoint that is being sealed";
}

void Core::AddRestarts(const Job& job, JobStatus& status) const {
  status.set_restarts(job.state.restarts_total());
  status.set_restarts_in_row(job.state.restarts());
  status.set_last_restart(job.state.last_restart());
  const uint32_t most = RestartsMax(job.spec());
  status.set_restarts_left(most - std::min(most, job.state.restarts()));
  status.set_goes_back_on_stop(job.running() && MayRollBack(job, /*counts=*/false));
}

}  // namespace starling::coordinator
