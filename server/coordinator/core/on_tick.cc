// The passage of time: silence, deadlines, held calls.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

// A crash of the coordinator loses at most this much of a job's running time.
constexpr absl::Duration kRunningSavePeriod = absl::Seconds(10);
constexpr absl::Duration kPendingPeriod = absl::Seconds(1);

}  // namespace

void Core::On(const event::Tick& event) {
  wall_ahead_ = event.wall - now_;
  TakeHeartbeats(event.heartbeats);
  const bool deaf = IsDeaf();
  if (!deaf) LookForSilence();
  LoseTheSilent(deaf);
  SetAsideWhoHangs();
  for (auto& [id, worker] : workers_) {
    for (auto& [uid, aside] : worker.aside) {
      if (aside.ask_again || now_ < aside.ask_at) continue;
      aside.ask_again = schedule_ = true;
    }
    if (worker.releasing() && now_ - worker.release_since > options_.release_deadline) {
      Lose(worker, absl::StrCat("did not release its job within ",
                                absl::FormatDuration(options_.release_deadline)));
    }
    const bool preparing = worker.job != 0 && worker.member_of == 0 && !worker.fenced();
    if (preparing && now_ - worker.release_since > options_.prepare_deadline) TakeBack(worker);
    if (worker.parked && now_ >= worker.parked->until) AnswerHeld(worker);
  }
  for (auto& [id, shard] : shards_) {
    StepDrain(shard);
    if (shard.parked && now_ >= shard.parked->until) AnswerHeld(shard);
  }
  ExpireSubmissions();
  ExpireCheckpointCalls();
  LookForCheckpoints();
  ForgetDaemons();
  ForgetJobs();
  if (now_ - pending_seen_ >= kPendingPeriod) {
    DropBackupsOfEnded();
    LookAtPending();
  }
  for (Job* const running : JobsIn(RUNNING)) {
    Job& job = *running;
    // The review of another job may have ended this one.
    if (job.running() && job.state.roster().members_size() == 0) EndUnserved(job);
    if (job.running()) ReviewNonFinite(job);
    if (!job.running()) continue;
    advance_.insert(job.uid());
    if (now_ - job.running_since >= kRunningSavePeriod) SaveState(job);
    const double limit = job.spec().stop().wall_time_seconds();
    const uint64_t done = StepsDone(job);
    NoteSteps(job, done);
    NoteCheckpointDue(job, done);
    NoteEvaluation(job);
    const bool training = done < job.steps();
    if (limit > 0 && !IsStopped(job) && training && RunningSeconds(job) >= limit) StopTraining(job);
  }
  BeginCheckpoints();
}

// The worker is live but does not become ready; another one may.
void Core::TakeBack(Worker& worker) {
  const std::string text = absl::StrCat(
      worker.name(), " was not ready within ", absl::FormatDuration(options_.prepare_deadline),
      " (it opens the data, plans memory and connects to the shards): see its log");
  if (Job* job = FindRunning(worker.job); job != nullptr) {
    return SetAside(worker, *job, Fault::KIND_UNSPECIFIED, text);
  }
  Order(worker, 0);
  schedule_ = true;
}

// Whether the worker reports while its computation makes no progress. Waiting for others does not
// count.
bool Core::Hangs(const Worker& worker) const {
  const Activity& activity = worker.report.activity();
  return activity.kind() == Activity::COMPUTING &&
         activity.seconds() >= std::max(absl::ToDoubleSeconds(options_.hang_least),
                                        options_.hang_units * activity.unit_seconds());
}

void Core::SetAsideWhoHangs() {
  for (auto& [id, worker] : workers_) {
    if (!worker.live() || worker.job == 0 || worker.job != worker.member_of || !Hangs(worker))
      continue;
    Job* job = FindRunning(worker.job);
    if (job == nullptr) continue;
    const Activity& activity = worker.report.activity();
    const std::string unit =
        activity.unit_seconds() > 0
            ? absl::StrFormat(" (a unit of this job takes %.2g s there)", activity.unit_seconds())
            : "";
    SetAside(
        worker, *job, Fault::KIND_UNSPECIFIED,
        absl::StrFormat("%s reports, but its computation has made no progress for %.0f s%s: see "
                        "its log, and restart it if that does not change",
                        worker.name(), activity.seconds(), unit));
  }
}

// A worker that was set aside without progress and has released the job is asked again later.
void Core::LetAskAgain(Worker& worker) const {
  if (worker.report.run().job_uid() != 0 || Hangs(worker)) return;
  for (auto& [uid, aside] : worker.aside) {
    if (aside.kind != Fault::KIND_UNSPECIFIED || aside.ask_at != absl::InfiniteFuture()) continue;
    aside.ask_at = now_ + options_.hang_rest * (1 << std::min(aside.times - 1, 10));
  }
}

void Core::LoseTheSilent(bool deaf) {
  std::vector<const Daemon*> lost;
  const auto look_at = [&](auto& daemons, uint64_t& count) {
    for (auto& [id, daemon] : daemons) {
      const absl::Duration silent = now_ - daemon.last_heard;
      const absl::Time from =
          deaf ? std::max(SilentFrom(daemon), ClaimedSince(daemon)) : SilentFrom(daemon);
      if (daemon.fenced() || now_ - from <= options_.liveness) continue;
      Lose(daemon, daemon.heard
                       ? absl::StrFormat("no report for %.1f s", absl::ToDoubleSeconds(silent))
                       : "not heard of since the coordinator started");
      ++count;
      lost.push_back(&daemon);
    }
  };
  look_at(workers_, workers_lost_);
  look_at(shards_, shards_lost_);
  for (const Daemon* daemon : lost) ResolveRegistration(*daemon);
}

void Core::ExpireSubmissions() {
  std::vector<std::string> over, late;
  std::map<uint64_t, std::string> waiting;  // oldest first
  for (const auto& [name, submission] : submissions_) {
    if (now_ >= submission.until) {
      over.push_back(name);
    } else if (submission.worker == 0) {
      waiting[submission.inspect] = name;
    } else if (now_ >= submission.deadline) {
      late.push_back(name);
    }
  }
  for (const std::string& name : over) {
    const Submission& submission = submissions_.at(name);
    RejectSubmission(name, submission.refused_by.empty()
                               ? absl::FailedPreconditionError(
                                     absl::StrCat("no worker has inspected the data within ",
                                                  absl::FormatDuration(options_.submit_deadline),
                                                  ": see the workers' logs, then submit again"))
                               : submission.Refusal());
  }
  size_t asked = submissions_.size() - waiting.size();
  for (const auto& [number, name] : waiting) {
    Submission& submission = submissions_.at(name);
    if (asked >= limits::kSubmissionsMax) {
      submission.without_worker = now_;
      continue;
    }
    if (AskWorkerToInspect(submission)) {
      ++asked;
    } else if (!submission.refused_by.empty()) {
      RejectSubmission(name, submission.Refusal());
    } else if (now_ >= submission.without_worker + options_.inspector_wait) {
      RejectSubmission(name, absl::FailedPreconditionError(absl::StrCat(
                                 "no worker could inspect the data for ",
                                 absl::FormatDuration(now_ - submission.without_worker),
                                 ": start one with `", options_.worker_command, "`")));
    }
  }
  for (const std::string& name : late) {
    Worker& worker = workers_.at(submissions_.at(name).worker);
    worker.slow_to_look = true;
    RefuseSubmission(name, absl::FailedPreconditionError(
                               absl::StrCat(worker.name(), " has not inspected the data within ",
                                            absl::FormatDuration(options_.inspect_deadline),
                                            ": see its log, then submit again")));
  }
}

}  // namespace starling::coordinator
