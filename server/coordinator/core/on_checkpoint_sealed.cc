// The manifest makes what shards have written a checkpoint: what it says of the job, and what
// follows once it is durable (docs/decisions/0013-checkpoints.md, part 3).
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/manifest.h"
#include "common/defences.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {

void Core::SealAttempt(Job& job) {
  absl::StatusOr<CheckpointManifest> manifest = MakeManifest(job);
  if (!manifest.ok()) return FailCheckpoint(job, std::string(manifest.status().message()));
  job.checkpoint.attempt->stage = CheckpointAttempt::Stage::kSealing;
  job.checkpoint.attempt->since = now_;
  if (DefenceMasked(Defence::kKeepOlder)) {
    checkpoints_[job.checkpoint.attempt->id];
    DropSurplus(job);
  }
  disk_actions_.push_back(action::SealCheckpoint{job.checkpoint.attempt->id, *std::move(manifest)});
}

// What is known of the job now, cut off at the step.
absl::StatusOr<CheckpointManifest> Core::MakeManifest(const Job& job) const {
  const CheckpointAttempt& attempt = *job.checkpoint.attempt;
  const uint64_t step = attempt.step;
  const auto end_of = [&](uint32_t epoch) { return (uint64_t{epoch} + 1) * job.epoch_steps(); };
  CheckpointManifest manifest;
  manifest.set_format(kManifestFormat);
  manifest.set_id(ToString(attempt.id));
  *manifest.mutable_job() = job.stored.description();
  manifest.set_step(step);
  for (const StoredPolicy& stored : job.state.policies()) {
    if (stored.record().has_step() && stored.record().step() <= step)
      *manifest.mutable_policy() = stored.record().policy();
  }
  std::optional<uint32_t> copy;  // else the values are those of the epoch's end
  for (const auto& [epoch, evaluation] : job.evaluations) {
    if (end_of(epoch) > step) continue;
    manifest.add_evaluating(epoch);
    if (end_of(epoch) < step) copy = epoch;
  }
  if (copy) manifest.set_copy_epoch(*copy);
  std::vector<const CheckpointPart*> parts;
  for (const auto& [id, part] : attempt.parts) {
    const absl::Status status = CheckWrittenPart(part.said, ShardId(id), step, copy);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(part.name, ": ", status.message()));
    }
    parts.push_back(&part.said);
  }
  if (absl::Status status = JoinParts(parts, manifest); !status.ok()) return status;
  for (const auto& [epoch, result] : job.results) {
    if (end_of(epoch) > step) continue;
    EpochResult& added = *manifest.add_results();
    added = result;
    TakeTrainLoss(job, added);  // more may have come since the epoch ended
  }
  for (const CurvePoint& point : job.curve.points()) {
    if (point.step() <= step) *manifest.add_points() = point;
  }
  manifest.set_curve_merges(job.curve.merges());
  if (job.loss) manifest.set_train_loss(*job.loss);
  const LossTrend trend = job.guard ? job.guard->trend() : LossTrend();
  manifest.set_first_loss(trend.first);
  manifest.set_loss_level(trend.level);
  manifest.set_running_us(attempt.running_us);
  manifest.set_created(attempt.created);
  manifest.set_version(options_.version);
  manifest.set_asked_for(attempt.asked_for);
  manifest.set_not_reproducible_because(WhyNotReproducible(job, step));
  return manifest;
}

// It is there, whatever has become of the job meanwhile.
void Core::On(const event::CheckpointSealed& event) {
  Job* job = FindAttempt(event.id);
  CreateCheckpointReply reply;
  if (event.info.ok()) *reply.mutable_checkpoint() = checkpoints_[event.id] = *event.info;
  if (job == nullptr) {  // it is deleted
    if (event.info.ok()) return AnswerCheckpoint(event.id.job.value, event.id.number, reply);
    disk_actions_.push_back(action::DropCheckpoint{event.id});
    return AnswerCheckpoint(event.id.job.value, event.id.number,
                            absl::AbortedError(event.info.status().message()));
  }
  CheckpointProgress& progress = job->checkpoint;
  CheckpointAttempt& attempt = *progress.attempt;
  if (!event.info.ok()) {
    attempt.stage = CheckpointAttempt::Stage::kWriting;  // the disk is not asked for anything now
    if (std::exchange(attempt.given_up, false)) {
      GiveUpAttempt(*job);
    } else {
      FailCheckpoint(*job, std::string(event.info.status().message()));
    }
    return AdvanceRollback(*job);
  }
  progress.last_cut = std::max(progress.last_cut, attempt.begun);
  progress.last_seconds = SecondsSince(attempt.begun);
  progress.misses = progress.failed = 0;
  progress.trouble.clear();
  progress.due_since = absl::InfiniteFuture();
  Log(*job,
      absl::StrFormat("checkpoint %s is there: step %d, %s, taken in %.1f s", event.info->id(),
                      event.info->step(), SizeText(event.info->bytes()), progress.last_seconds));
  progress.attempt.reset();
  job->state.set_sealed_checkpoint(event.id.number);
  job->state.set_restarts(0);
  if (job->state.has_diverged() && event.info->step() > job->state.diverged())
    job->state.clear_diverged();
  SaveState(*job);
  TouchJob(*job);
  AnswerCheckpoint(job->uid(), event.id.number, reply);
  DropSurplus(*job);
  if (job->over()) unpacked_.insert(job->uid());
  AdvanceRollback(*job);
}

}  // namespace starling::coordinator
