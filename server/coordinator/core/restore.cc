// A job whose first values come from a checkpoint (docs/decisions/0013-checkpoints.md, part 4). It
// continues the checkpoint's job, or begins another one with its values.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/data_plan/job_steps.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"
#include "server/coordinator/core/resolve_model.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kLookAgain = absl::Seconds(10);  // at what could not be read

// "adamw"
std::string KindOf(const Optimizer& optimizer) {
  const auto* const field = optimizer.GetDescriptor()->FindFieldByNumber(optimizer.kind_case());
  return field == nullptr ? "none" : field->name();
}

// How many workers a job takes changes no value in BSP, and the cluster may be another one. 0: as
// before; a `least` beyond the old maximum raises that.
absl::Status ChangeWorkers(uint32_t least, uint32_t most, JobSpec& spec) {
  if (least == 0) least = spec.workers_min();
  if (most == 0) most = std::max(least, spec.workers_max());
  if (least > most || most > limits::kWorkersPerJobMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("workers: expected a least and a greatest number, in this order and at most ",
                     limits::kWorkersPerJobMax, ", got ", least, " and ", most));
  }
  spec.set_workers_min(least);
  spec.set_workers_max(most);
  spec.set_workers_backup(std::min(spec.workers_backup(), most - 1));
  return absl::OkStatus();
}

}  // namespace

// A digest says what was written, not that it makes sense.
absl::Status Core::CheckManifestNumbers(const CheckpointManifest& manifest, uint64_t epoch_steps) {
  const uint64_t epochs = manifest.step() / epoch_steps;  // that are over
  std::string wrong;
  if (manifest.skipped() > manifest.step())
    wrong = absl::StrCat(manifest.skipped(), " skipped updates");
  if (manifest.running_us() < 0) wrong = absl::StrCat(manifest.running_us(), " us of running");
  for (const EpochResult& result : manifest.results()) {
    if (result.epoch() >= epochs) wrong = absl::StrCat("a result of epoch ", result.epoch() + 1);
  }
  for (const uint32_t epoch : manifest.evaluating()) {
    if (epoch >= epochs) wrong = absl::StrCat("an evaluation of epoch ", epoch + 1);
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("checkpoint ", manifest.id(), " of step ",
                                                 manifest.step(), ", after ", epochs,
                                                 " epochs, has ", wrong, ": it is damaged"));
}

// The name of the job that would be submitted; empty: its checkpoint is not known.
std::string Core::NameOf(const SubmitRequest& request) const {
  if (request.from().empty() || request.has_spec()) return request.spec().name();
  if (!request.name().empty()) return request.name();
  const std::optional<CheckpointInfo> info = FindCheckpoint(request);
  return info ? info->job() : "";
}

// Completes the submission by what the host has read. A job that continues has the spec of the
// checkpoint.
absl::Status Core::TakeSource(const event::Submit& event, Submission& submission) {
  SubmitRequest& request = submission.request;
  const bool continues = !request.has_spec();
  if (request.optimizer_state() && (request.from().empty() || continues)) {
    return absl::InvalidArgumentError(
        "optimizer_state: expected a job file and a checkpoint: a job that continues has its "
        "optimizer's state anyway");
  }
  if ((request.workers_min() > 0 || request.workers_max() > 0) &&
      (request.from().empty() || !continues)) {
    return absl::InvalidArgumentError(
        "workers_min, workers_max: expected a job that continues: a job file has its own");
  }
  if (request.from().empty()) return absl::OkStatus();
  STARLING_RETURN_IF_ERROR(CheckSources());
  if (!checkpoints_listed_) return absl::UnavailableError(NotListedText());
  const std::optional<CheckpointInfo> info = FindCheckpoint(request);
  const auto named = ParseCheckpointId(request.from());
  const auto unreadable =
      named ? unreadable_checkpoints_.find(*named) : unreadable_checkpoints_.end();
  if (unreadable != unreadable_checkpoints_.end()) {
    list_checkpoints_at_ = std::min(list_checkpoints_at_, now_ + kLookAgain);
    return absl::FailedPreconditionError(
        absl::StrCat("from: checkpoint ", request.from(), " cannot be read: ", unreadable->second,
                     "; it is looked at again within ", absl::FormatDuration(kLookAgain)));
  }
  if (!info || !event.from.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("from: there is no checkpoint ", request.from().substr(0, 200),
                     ", and none of a job of that name: `starling checkpoint list` lists them"));
  }
  if (!event.from->ok()) {
    return absl::FailedPreconditionError(absl::StrCat("from: checkpoint ", info->id(),
                                                      " cannot be read on the coordinator's ",
                                                      "machine: ", event.from->status().message()));
  }
  const CheckpointManifest& manifest = **event.from;
  const auto id = ParseCheckpointId(manifest.id());
  const auto known = id ? checkpoints_.find(*id) : checkpoints_.end();
  if (known == checkpoints_.end()) {
    return absl::NotFoundError(
        absl::StrCat("from: checkpoint ", manifest.id(), " has just been deleted"));
  }
  submission.from = manifest;
  submission.manifest_digest = known->second.manifest_digest();
  submission.mode = continues                   ? Restore::CONTINUE
                    : request.optimizer_state() ? Restore::VALUES_AND_OPTIMIZER
                                                : Restore::VALUES;
  if (!continues) return absl::OkStatus();
  *request.mutable_spec() = manifest.job().spec();
  if (!request.name().empty()) request.mutable_spec()->set_name(request.name());
  return ChangeWorkers(request.workers_min(), request.workers_max(), *request.mutable_spec());
}

// The model of a job that continues is there already; what it was made from may not be.
absl::Status Core::ResolveModelOf(const Submission& submission, const Inspection& inspection,
                                  JobSpec& spec) {
  if (submission.mode != Restore::CONTINUE) return ResolveModel(inspection, spec);
  ModelSource source;
  source.Swap(spec.mutable_model_source());
  spec.clear_model_source();
  STARLING_RETURN_IF_ERROR(ResolveModel(inspection, spec));
  spec.mutable_model_source()->Swap(&source);
  return absl::OkStatus();
}

// The samples below the checkpoint's step have counted, those from it on have not.
absl::Status Core::CheckSameData(const Submission& submission, const Inspection& inspection) const {
  if (submission.mode != Restore::CONTINUE) return absl::OkStatus();
  const JobDescription& job = submission.from->job();
  if (inspection.data_digest() == job.data_digest() &&
      inspection.train_samples() == job.train_samples() &&
      inspection.test_samples() == job.test_samples()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "from: job %s was trained on other data than %s finds: digest %016x, expected %016x; %d and "
      "%d samples, expected %d and %d: give the workers the same files, or begin another job with "
      "these values (starling submit -f FILE --from %s)",
      job.spec().name(), workers_.at(submission.worker).name(), inspection.data_digest(),
      job.data_digest(), inspection.train_samples(), inspection.test_samples(), job.train_samples(),
      job.test_samples(), submission.from->id()));
}

absl::Status Core::StartFrom(const Submission& submission, Job& job) const {
  if (!submission.from) return absl::OkStatus();
  const CheckpointManifest& manifest = *submission.from;
  const JobSpec& spec = job.spec();
  const Restore& before = manifest.job().restore();
  Restore& restore = *job.stored.mutable_description()->mutable_restore();
  restore.set_checkpoint(manifest.id());
  restore.set_manifest_digest(submission.manifest_digest);
  restore.set_mode(submission.mode);
  if (const auto id = ParseCheckpointId(manifest.id());
      id && id->cluster != cluster_.cluster() && !manifest.asked_for()) {
    job.stored.add_warnings(absl::StrCat(
        "from: checkpoint ", manifest.id(), " belongs to cluster ", ToHex(id->cluster),
        ", which may delete it while this job still reads it: one that `starling checkpoint "
        "create` makes there stays"));
  }
  if (submission.mode == Restore::CONTINUE) {
    if (manifest.step() >= job.steps()) {
      return absl::InvalidArgumentError(
          absl::StrCat("from: checkpoint ", manifest.id(), " is of step ", manifest.step(),
                       " of a job of ", job.steps(), " steps: nothing is left to do"));
    }
    if (const auto numbers = CheckManifestNumbers(manifest, job.epoch_steps()); !numbers.ok())
      return absl::InvalidArgumentError(absl::StrCat("from: ", numbers.message()));
    if (manifest.policy().kind() == Policy::KIND_UNSPECIFIED) {
      return absl::InvalidArgumentError(
          absl::StrCat("from: checkpoint ", manifest.id(), " names no policy"));
    }
    restore.set_updates_before(before.updates_before());
    ContinueFrom(manifest, job);
    return absl::OkStatus();
  }
  if (spec.model_source().has_init()) {
    return absl::InvalidArgumentError(
        "model.init: the first values come from a checkpoint (--from): remove one of the two");
  }
  if (const std::string why = WhyItDoesNotFit(manifest, spec.model()); !why.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("from: the model is not that of checkpoint ", manifest.id(), ": ", why));
  }
  if (submission.mode == Restore::VALUES) return absl::OkStatus();
  const Optimizer& optimizer = manifest.job().spec().optimizer();
  if (optimizer.kind_case() != spec.optimizer().kind_case()) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer: checkpoint ", manifest.id(), " has the state of ",
                     KindOf(optimizer), ", expected that of ", KindOf(spec.optimizer()),
                     ": take the same optimizer, or only the values (without --optimizer-state)"));
  }
  restore.set_updates_before(before.updates_before() + manifest.step() - manifest.skipped());
  return absl::OkStatus();
}

// The job's state is that of the checkpoint.
void Core::ContinueFrom(const CheckpointManifest& manifest, Job& job) {
  const uint64_t step = manifest.step();
  Restore& restore = *job.stored.mutable_description()->mutable_restore();
  restore.set_step(step);
  restore.set_skipped(manifest.skipped());
  restore.set_loss_scale_log2(manifest.loss_scale_log2());
  restore.set_loss_scale_clean(manifest.loss_scale_clean());
  *restore.mutable_policy() = manifest.policy();
  if (!manifest.evaluating().empty()) restore.set_copy_epoch(*manifest.evaluating().rbegin());
  PolicyRecord& policy = *job.state.mutable_policies(0)->mutable_record();
  *policy.mutable_policy() = manifest.policy();
  policy.set_step(step);
  policy.set_by(absl::StrCat("checkpoint ", manifest.id()));
  SetProgress(manifest, job);
}

// What is done of the job.
void Core::SetProgress(const CheckpointManifest& manifest, Job& job) {
  const uint64_t step = manifest.step();
  job.stored.set_not_reproducible_because(manifest.not_reproducible_because());
  job.state.set_epoch(static_cast<uint32_t>(step / job.epoch_steps()));
  job.state.set_running_us(manifest.running_us());
  double seconds = 0;
  for (const EpochResult& result : manifest.results()) {
    seconds += result.seconds();
    job.results[result.epoch()] = result;
    if (result.evaluated()) NoteTested(job, result.epoch());
  }
  job.state.set_epoch_opened_us(
      std::min(static_cast<int64_t>(1e6 * seconds), manifest.running_us()));
  if (manifest.has_train_loss()) {
    job.loss = manifest.train_loss();
    job.state.set_train_loss(manifest.train_loss());
  }
  job.state.mutable_guard()->set_first_loss(manifest.first_loss());
  job.state.mutable_guard()->set_loss_level(manifest.loss_level());
  job.curve.Restore({manifest.points().begin(), manifest.points().end()}, manifest.curve_merges(),
                    step);
  job.curve.MarkUnsaved();
  job.curve_session = step + 1;
  job.losses_from = step;
}

// Whether it is one of its own to which the job went back, and which it needs no more: shards have
// read it, and a newer one is there.
bool Core::HasPassed(const Job& job, const CheckpointId& id) const {
  const CheckpointInfo* last = LastCheckpoint(checkpoints_, cluster_.cluster(), JobUid(job.uid()));
  return IsOwn(job, id) && job.running() && job.partitions.AllReported() && last != nullptr &&
         ParseCheckpointId(last->id())->number > id.number;
}

// Checkpoints that a job still needs, or a submission.
std::set<CheckpointId> Core::SourcesInUse() const {
  std::set<CheckpointId> sources;
  const auto add = [&](const std::string& text) {
    if (const auto id = ParseCheckpointId(text)) sources.insert(*id);
  };
  for (const JobState state : {PENDING, RUNNING}) {
    for (const uint64_t uid : UidsIn(state)) {
      const Job& job = jobs_.at(uid);
      const auto source = ParseCheckpointId(job.stored.description().restore().checkpoint());
      if (source && !HasPassed(job, *source)) sources.insert(*source);
      add(FirstSource(job).checkpoint());
      if (job.rollback.reading) sources.insert(*job.rollback.reading);
    }
  }
  for (const auto& [name, submission] : submissions_) {
    if (submission.from) add(submission.from->id());
  }
  return sources;
}

// Those of epochs that are over and not evaluated yet.
void Core::OpenEvaluations(Job& job) {
  for (uint32_t epoch = 0; epoch < job.state.epoch(); ++epoch) {
    const auto result = job.results.find(epoch);
    const bool evaluated = result != job.results.end() && result->second.evaluated();
    if (!evaluated && job.evaluates_at(epoch)) job.evaluations[epoch];
  }
}

}  // namespace starling::coordinator
