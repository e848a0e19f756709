// Submission of a job: it is checked, a worker inspects its data, and it is accepted or refused.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/config/job_file.h"
#include "common/data_plan/job_steps.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/leases/lease_id.h"

namespace starling::coordinator {

namespace {

// Submissions that wait for a worker to inspect their data.
constexpr size_t kSubmissionsQueuedMax = 1000;
constexpr uint64_t kSubmissionsQueuedBytesMax = 64 << 20;
constexpr size_t kWorkersShown = 4;                           // in a message
constexpr absl::Duration kFirstListWait = absl::Seconds(10);  // for the checkpoints that are there
constexpr size_t kDeviceTextBytesMax = 400;                   // per worker

// The specification is kept in memory and on disk, and sent to all daemons of the job.
absl::Status CheckSpecSize(const JobSpec& spec) {
  const size_t bytes = spec.ByteSizeLong();
  if (bytes <= limits::kJobSpecBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the job's specification has ", bytes,
                                                 " bytes; expected at most ",
                                                 limits::kJobSpecBytesMax));
}

// Compares two absolute paths as text.
bool LiesBeneath(const std::string& folder, const std::string& root) {
  const std::filesystem::path relative =
      std::filesystem::path(folder).lexically_normal().lexically_relative(
          std::filesystem::path(root).lexically_normal());
  return !relative.empty() && *relative.begin() != "..";
}

absl::Status NameIsTaken(const std::string& name, JobState state, bool over) {
  return absl::AlreadyExistsError(
      absl::StrCat("a job named ", name, " exists (", JobState_Name(state),
                   "): submit under another name, or delete it first: starling ",
                   over ? "" : absl::StrCat("cancel ", name, " && starling "), "delete ", name));
}

// Adds warnings about what may be a mistake but does not prevent the job.
void NoteWarnings(const JobSpec& spec, const Inspection& inspection, StoredJob& job) {
  for (const std::string& warning : config::UnusedKeys(spec)) job.add_warnings(warning);
  const int more = inspection.warnings_size() - static_cast<int>(limits::kWarningsPerJobMax);
  for (int i = 0; i < inspection.warnings_size() - std::max(more, 0); ++i)
    job.add_warnings(std::string(CutUtf8(inspection.warnings(i), limits::kFaultBytesMax)));
  if (more > 0) job.add_warnings(absl::StrCat("and ", more, " more warnings about the data"));
}

}  // namespace

absl::Status Core::CheckSubmission(const SubmitRequest& request) const {
  const JobSpec& spec = request.spec();
  STARLING_RETURN_IF_ERROR(CheckSpecSize(spec));
  STARLING_RETURN_IF_ERROR(config::ValidateSpec(spec));
  STARLING_RETURN_IF_ERROR(CheckShares(spec));
  const bool in_place_of_another = request.dry_run() && by_name_.contains(spec.name());
  if (by_name_.size() >= limits::kJobsMax && !in_place_of_another) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "there are ", by_name_.size(),
        " jobs, which is the maximum: delete what you do not need (starling "
        "delete NAME ..., starling delete --ended), or start the coordinator with a smaller "
        "--keep-ended-jobs, which deletes the oldest that have ended"));
  }
  STARLING_RETURN_IF_ERROR(CheckTensorboard(spec));
  STARLING_RETURN_IF_ERROR(CheckOutput(spec));
  STARLING_RETURN_IF_ERROR(CheckDevice(spec));
  if (spec.has_checkpoint()) STARLING_RETURN_IF_ERROR(CheckCheckpoints());
  // A job's uid must not be one of a job whose checkpoints are there. A disk that fails or hangs
  // keeps only jobs out that want some.
  const bool listing = checkpoints_trouble_.empty() && now_ < started_ + kFirstListWait;
  if (!options_.checkpoint_root.empty() && !checkpoints_listed_ &&
      (spec.has_checkpoint() || listing)) {
    return absl::UnavailableError(NotListedText());
  }
  uint64_t bytes = spec.ByteSizeLong();
  for (const auto& [name, other] : submissions_) {
    bytes += other.request.spec().ByteSizeLong();
    if (other.from) bytes += other.from->ByteSizeLong();
  }
  if (submissions_.size() >= kSubmissionsQueuedMax || bytes > kSubmissionsQueuedBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        submissions_.size(), " jobs are being submitted right now: try again in a moment"));
  }
  return absl::OkStatus();
}

// A job that needs a GPU is refused if no worker has one, instead of waiting for one.
absl::Status Core::CheckDevice(const JobSpec& spec) const {
  if (spec.device() != DEVICE_GPU) return absl::OkStatus();
  std::vector<std::string> without;
  for (const auto& [id, worker] : workers_) {
    if (worker.fenced()) continue;
    const RegisterRequest& registration = worker.stored.registration();
    if (registration.gpu()) return absl::OkStatus();
    without.push_back(absl::StrCat(worker.name(), " computes on ",
                                   registration.device().substr(0, kDeviceTextBytesMax)));
  }
  if (without.empty()) return absl::OkStatus();  // there is no worker at all: other messages say so
  const size_t more = without.size() > kWorkersShown ? without.size() - kWorkersShown : 0;
  without.resize(without.size() - more);
  return absl::FailedPreconditionError(absl::StrCat(
      "workers.device is gpu, but no worker of this cluster has a GPU: ",
      absl::StrJoin(without, "; "), more > 0 ? absl::StrCat("; and ", more, " more") : "",
      ". Start a worker on a machine with a GPU, or submit with workers.device: auto"));
}

// Does not look at the disk: CurveWriter checks the path, including links.
absl::Status Core::CheckTensorboard(const JobSpec& spec) const {
  const std::string& folder = spec.tensorboard();
  if (folder.empty()) return absl::OkStatus();
  if (options_.tensorboard_root.empty()) {
    return absl::InvalidArgumentError(
        "tensorboard: this coordinator writes no event files: start it with --tensorboard-root "
        "DIR, beneath which jobs may name folders; or remove tensorboard from the job, and have "
        "the client write them: starling metrics JOB --tensorboard DIR");
  }
  if (!LiesBeneath(folder, options_.tensorboard_root)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensorboard: expected a folder beneath ", options_.tensorboard_root,
                     ", the coordinator's --tensorboard-root, got ", folder));
  }
  for (const JobState state : {PENDING, RUNNING}) {
    for (const uint64_t uid : UidsIn(state)) {
      const Job& job = jobs_.at(uid);
      if (job.spec().tensorboard() != folder) continue;
      return absl::InvalidArgumentError(absl::StrCat("tensorboard: job ", job.name(),
                                                     " writes its event files to ", folder,
                                                     ": name another folder"));
    }
  }
  return absl::OkStatus();
}

bool Core::AsksForDisk(const SubmitRequest& request) const {
  const std::string name = NameOf(request);
  if (!request.dry_run() && (by_name_.contains(name) || submissions_.contains(name))) return false;
  if (!request.from().empty()) return FindCheckpoint(request) && CheckSources().ok();
  return !request.spec().tensorboard().empty() && !request.dry_run() &&
         CheckSubmission(request).ok();
}

void Core::On(const event::Submit& event) {
  const SubmitRequest& request = event.request;
  const std::string name = NameOf(request);
  // A dry run also reports other errors, even if the name is taken.
  if (Job* job = FindJob(name); job != nullptr && !request.dry_run()) {
    if (request.nonce() != 0 && job->stored.submit_nonce() == request.nonce()) {
      SubmitReply reply;
      reply.set_uid(job->uid());
      *reply.mutable_status() = StatusOf(*job);
      return Reply(event.call, std::move(reply));
    }
    return Reply(event.call, NameIsTaken(name, job->state.state(), job->over()));
  }
  // Names contain no '?'.
  const std::string key =
      request.dry_run() ? absl::StrCat(name, "?", request.nonce()) : std::string(name);
  if (auto it = submissions_.find(key); it != submissions_.end()) {
    if (request.nonce() == 0 || it->second.request.nonce() != request.nonce()) {
      return Reply(event.call, absl::AlreadyExistsError(absl::StrCat(
                                   "a job named ", name,
                                   " is being submitted right now: choose another name")));
    }
    Reply(it->second.call, absl::AbortedError("the same submission was sent again"));
    it->second.call = event.call;
    return;
  }
  Submission taken;
  taken.request = request;
  absl::Status status = TakeSource(event, taken);
  if (status.ok()) status = CheckSubmission(taken.request);
  if (!status.ok()) return Reply(event.call, std::move(status));
  if (!event.tensorboard.ok()) {
    return Reply(event.call, absl::InvalidArgumentError(absl::StrCat(
                                 "tensorboard: ", event.tensorboard.message(),
                                 " (the coordinator writes the event files, on its machine)")));
  }
  Submission& submission = submissions_[key] = std::move(taken);
  submission.call = event.call;
  submission.inspect = (generation() << 32) + ++last_inspect_;
  submission.without_worker = now_;
  submission.until = now_ + options_.submit_deadline;
  if (AskWorkerToInspect(submission)) return;
  // Right after a start, known workers may not have reported yet; those that drain may be replaced.
  if (std::all_of(workers_.begin(), workers_.end(),
                  [](const auto& entry) { return entry.second.fenced(); })) {
    RejectSubmission(key, absl::FailedPreconditionError(
                              absl::StrCat("no worker can inspect the data: start one with `",
                                           options_.worker_command, "`")));
  }
}

// Asks a worker to inspect the data, preferably an idle one that was not slow or set aside. False:
// no live worker is left to ask. `worker` stays 0 then, and also while the maximum number of
// submissions is being inspected; this one gets its turn later.
bool Core::AskWorkerToInspect(Submission& submission) {
  if (std::exchange(submission.worker, 0) != 0) submission.without_worker = now_;
  const auto asked = std::count_if(submissions_.begin(), submissions_.end(),
                                   [](const auto& entry) { return entry.second.worker != 0; });
  const bool full = static_cast<size_t>(asked) >= limits::kSubmissionsMax;
  const auto rank = [](const Worker& worker) {
    const bool last = worker.slow_to_look || worker.quarantined() || !worker.aside.empty();
    return 2 * last + !worker.idle();
  };
  const Worker* best = nullptr;
  for (const auto& [id, worker] : workers_) {
    if (!worker.live() || worker.report.draining() || submission.refused_by.contains(id)) continue;
    if (best == nullptr || rank(worker) < rank(*best)) best = &worker;
  }
  if (best == nullptr) return false;
  if (full) {
    submission.without_worker = now_;
    return true;
  }
  submission.worker = best->id();
  submission.deadline = now_ + options_.inspect_deadline;
  touched_workers_.insert(best->id());
  return true;
}

absl::Status Submission::Refusal() const {
  const auto name = [](std::string* out, const auto& entry) { out->append(entry.second); };
  return absl::Status(error.code(), absl::StrCat(error.message(), " (workers asked: ",
                                                 absl::StrJoin(refused_by, ", ", name), ")"));
}

// One worker may lack what others have, so a job is refused only after several workers have refused
// it.
void Core::RefuseSubmission(const std::string& key, const absl::Status& error) {
  Submission& submission = submissions_.at(key);
  touched_workers_.insert(submission.worker);
  if (!absl::IsInvalidArgument(submission.error)) submission.error = error;
  submission.refused_by[submission.worker] = workers_.at(submission.worker).name();
  if (submission.refused_by.size() < limits::kInspectorsMax && AskWorkerToInspect(submission))
    return;
  RejectSubmission(key, submission.Refusal());
}

void Core::RejectSubmission(const std::string& key, absl::Status status) {
  auto it = submissions_.find(key);
  if (it->second.worker != 0) touched_workers_.insert(it->second.worker);
  Reply(it->second.call, std::move(status));
  submissions_.erase(it);
}

void Core::FinishSubmission(const std::string& key, const Inspection& inspection) {
  const Submission& submission = submissions_.at(key);
  if (!inspection.error().empty()) {
    return RefuseSubmission(key, absl::InvalidArgumentError(inspection.error()));
  }
  absl::StatusOr<Job> job = MakeJob(submission, inspection);
  if (!job.ok()) return RejectSubmission(key, job.status());
  touched_workers_.insert(submission.worker);
  const CallId call = submission.call;
  const bool dry_run = submission.request.dry_run();
  submissions_.erase(key);
  if (dry_run) {
    if (const Job* taken = FindJob(job->name()); taken != nullptr) {
      const absl::Status why = NameIsTaken(job->name(), taken->state.state(), taken->over());
      job->stored.add_warnings(std::string(why.message()));
    }
    SubmitReply reply;
    *reply.mutable_status() = StatusOf(*job);
    reply.mutable_status()->set_reason("dry run: the job would be accepted");
    return Reply(call, std::move(reply));
  }
  Accept(*std::move(job), call);
}

absl::StatusOr<Job> Core::MakeJob(const Submission& submission,
                                  const Inspection& inspection) const {
  const auto samples_max = static_cast<uint64_t>(limits::kSamplesMax);
  if (inspection.train_samples() < 1 || inspection.train_samples() > samples_max ||
      inspection.test_samples() > samples_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: expected 1 to ", limits::kSamplesMax, " training samples, found ",
        inspection.train_samples(), " (and ", inspection.test_samples(), " test samples)"));
  }
  Job job;
  JobDescription& description = *job.stored.mutable_description();
  *description.mutable_spec() = submission.request.spec();
  JobSpec& spec = *description.mutable_spec();
  // Unlike a job that asks for some, this one is not refused where none can be taken.
  if (!spec.has_checkpoint() && options_.default_checkpoint)
    *spec.mutable_checkpoint() = *options_.default_checkpoint;
  description.set_train_samples(inspection.train_samples());
  description.set_test_samples(inspection.test_samples());
  description.set_data_digest(inspection.data_digest());
  job.inspector = workers_.at(submission.worker).name();
  if (spec.evaluate().every_epochs() > 0 && inspection.test_samples() == 0) {
    return absl::InvalidArgumentError("evaluate: data.test has no samples");
  }
  if (const uint64_t steps = StepsInFullEpoch(spec, inspection.train_samples());
      steps > limits::kStepsPerEpochMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch.global: an epoch of ", inspection.train_samples(), " samples would have ", steps,
        " steps of ", spec.batch().global(), "; expected at most ", limits::kStepsPerEpochMax,
        ": choose a batch of at least ",
        (inspection.train_samples() + limits::kStepsPerEpochMax - 1) / limits::kStepsPerEpochMax));
  }
  STARLING_RETURN_IF_ERROR(CheckSameData(submission, inspection));
  STARLING_RETURN_IF_ERROR(ResolveModelOf(submission, inspection, spec));
  STARLING_RETURN_IF_ERROR(CheckSpecSize(spec));
  STARLING_RETURN_IF_ERROR(CheckOutput(spec));  // another job may have taken the file meanwhile
  STARLING_RETURN_IF_ERROR(PlanPartitions(job));
  STARLING_RETURN_IF_ERROR(CheckShardMemory(job));
  NoteWarnings(submission.request.spec(), inspection, job.stored);
  job.state.set_state(PENDING);
  StartPolicies(job);
  STARLING_RETURN_IF_ERROR(StartFrom(submission, job));
  PlanOutput(job);
  if (spec.optimizer().learning_rate().has_cosine() && spec.stop().wall_time_seconds() > 0 &&
      spec.stop().epochs() == limits::kEpochsMax && spec.stop().steps() == 0) {
    job.stored.add_warnings(absl::StrCat(
        "learningRate: cosine spans the job's ", job.steps(),
        " steps, since stop has only wallTime, so the rate stays at its peak until wallTime is "
        "over: also set stop.epochs or stop.steps"));
  }
  job.stored.set_submit_nonce(submission.request.nonce());
  job.stored.set_submitted_us(absl::ToUnixMicros(wall()));
  job.pending_since = now_;
  return job;
}

void Core::Accept(Job accepted, CallId call) {
  cluster_.set_last_job_uid(cluster_.last_job_uid() + 1);
  SaveCluster();
  const uint64_t uid = cluster_.last_job_uid();
  Job& job = jobs_.emplace(uid, std::move(accepted)).first->second;
  job.stored.mutable_description()->mutable_run()->set_job_uid(uid);
  Enlist(job);
  batch_.puts[records::Job(uid)] = job.stored.SerializeAsString();
  for (const auto& [epoch, result] : job.results)
    Put(records::JobResult(uid, epoch), result.SerializeAsString());
  SaveState(job);
  SaveCurve(job);
  Log(job, absl::StrCat("accepted: ", job.samples(), " training samples, ", job.stored.parameters(),
                        " parameters in ", job.partitions.size(), " partitions, ", job.steps(),
                        " steps in ", job.epochs(), " epochs"));
  for (const std::string& warning : job.stored.warnings())
    Log(job, absl::StrCat("warning: ", warning));
  Schedule();  // now, so that the answer says whether the job runs or what it waits for
  SubmitReply reply;
  reply.set_uid(uid);
  *reply.mutable_status() = StatusOf(job);
  Reply(call, std::move(reply));
}

}  // namespace starling::coordinator
