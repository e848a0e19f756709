// A job on this worker: it is prepared, served, left and closed. Also the end of the process.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reserve_nodes.h"
#include "common/data_plan/job_steps.h"
#include "worker/core/core.h"

namespace starling::session {

void Core::MaybeStartJob() {
  if (job_.has_value() || draining_ || !have_orders_ || !orders_.has_run()) return;
  JobState& job = job_.emplace(&memory_);
  job.description = described_;
  job.run = RunOf(job.description.run());
  std::erase_if(finished_, [&](const Finished& finished) {
    return finished.run.job == job.run.job && finished.run != job.run;
  });
  job.steps = StepsInFullEpoch(job.description.spec(), job.description.train_samples());
  job.steps_in_job = JobSteps(job.description.spec(), job.description.train_samples());
  job.micro_batches = job.description.spec().batch().micro_batches();
  job.backup = job.description.spec().workers_backup();
  UpdateJob(orders_);
  Do(action::Prepare{job.description});
}

void Core::On(const event::JobPrepared& e) {
  if (!job_.has_value() || e.run != job_->run || job_->phase == JobPhase::kBroken) return;
  JobState& job = *job_;
  if (!e.status.ok()) {
    if (job.phase != JobPhase::kPreparing) return;
    if (e.device_lost) {
      exit_status_ = e.status;
      return On(event::Drain{});
    }
    const bool data = absl::IsDataLoss(e.status) || absl::IsNotFound(e.status);
    const bool no_room = absl::IsResourceExhausted(e.status);
    return Break(data      ? Fault::DATA
                 : no_room ? Fault::NO_ROOM
                           : Fault::MODEL,
                 absl::StrCat("worker ", options_.name, ": ", std::string(e.status.message())));
  }
  job.slices = e.slices;
  job.contributing.assign(job.description.partitions(), 0);
  for (const SliceShape& slice : job.slices) {
    if (slice.contributes) ++job.contributing[slice.partition.value];
  }
  job.live.assign(job.slices.size(), Held());
  job.snapshot.assign(job.slices.size(), Held());
  job.seen.assign(job.description.partitions(), Lsn());
  ReserveNodes(
      RequestsAtFirst(job.slices.size()), [](uint64_t i) { return i; }, &job.requests);
  if (job.phase == JobPhase::kPreparing) job.phase = JobPhase::kServing;
}

// Ready for work: data and memory are ready, and all streams were up at the same time.
void Core::MaybePrepared() {
  if (!job_.has_value() || job_->prepared || job_->phase != JobPhase::kServing) return;
  if (job_->views.size() < job_->description.partitions() || streams_.empty()) return;
  for (const auto& [shard, stream] : streams_) {
    if (!stream.up) return;
  }
  job_->prepared = true;
  news_ = true;
}

void Core::On(const event::Drain&) {
  if (draining_) return;
  draining_ = true;
  idle_ = !job_.has_value() && finished_.empty();
  drain_began_ = now_;
  drain_by_ = now_ + options_.drain_deadline;
  news_ = true;
  Leave();
}

void Core::Leave() {
  if (!job_.has_value() || job_->phase == JobPhase::kLeaving) return;
  if (job_->phase != JobPhase::kServing) return CloseJob();
  job_->phase = JobPhase::kLeaving;
  job_->leave_by = now_ + (draining_ ? options_.drain_deadline / 2 : options_.leave_deadline);
  job_->evaluation.clear();
  job_->training.clear();
  if (job_->computing.value != 0 &&
      job_->units.at(job_->computing).purpose == WorkPurpose::kEvaluate && !draining_) {
    AbandonComputing();  // shards may discard its copy once this worker has left
  }
}

// Whether the orders that we have name another job, or none. They do not come again. A new
// incarnation has none yet.
bool Core::TakenAway() const {
  return have_orders_ && (!orders_.has_run() || RunOf(orders_.run()) != job_->run);
}

void Core::MaybeFinishLeaving() {
  if (!job_.has_value()) return;
  if (job_->phase == JobPhase::kBroken && TakenAway()) return CloseJob();  // broken while leaving
  if (job_->phase != JobPhase::kLeaving) return;
  const bool open = !job_->units.empty() || job_->presence != Presence::kParked;
  if (!open || now_ >= job_->leave_by || NobodyFinishesWithUs()) CloseJob();
}

// A drain can finish only if all shards of the job have streams and a daemon still answers.
bool Core::NobodyFinishesWithUs() const {
  if (!draining_) return false;
  for (const auto& [shard, stream] : streams_) {
    const absl::Time since = std::max(stream.down_since, drain_began_);
    if (!stream.up && now_ >= since + options_.silence_deadline) return true;
  }
  const absl::Time heard = std::max({coordinator_heard_, shard_heard_, drain_began_});
  return job_->computing.value == 0 && now_ >= heard + options_.silence_deadline;
}

void Core::CloseJob() {
  JobState& job = *job_;
  AbandonComputing();
  DropRequests([](const Request&) { return true; });
  DisconnectAll();
  Do(action::CloseJob{job.run});
  job_.reset();
  fault_.reset();
  news_ = true;
  MaybeStartJob();
}

// The job cannot continue on this worker: sends nothing more for it, and reports the fault to the
// coordinator.
void Core::Break(Fault::Kind kind, std::string message) {
  JobState& job = *job_;
  fault_.emplace();
  fault_->set_kind(kind);
  fault_->mutable_run()->set_job_uid(job.run.job.value);
  fault_->mutable_run()->set_era(job.run.era);
  fault_->set_message(std::move(message));
  while (!job.units.empty()) DropUnit(job.units.begin()->first);
  DropRequests([](const Request&) { return true; });
  job.phase = JobPhase::kBroken;
  job.presence = Presence::kParked;
  job.answers_left = 0;
  news_ = true;
}

// The coordinator tells by what others find whether this worker or the job is to blame.
void Core::BreakNonFinite(const Unit* unit, const WorkRange& range, const std::string& what) {
  Work work;
  SetWork(range, &work);  // before Break drops the request or unit that has it
  Break(Fault::NON_FINITE, absl::StrCat(Blame(unit), ": ", what));
  *fault_->mutable_work() = work;
}

void Core::MaybeExit() {
  if (!draining_) return;
  const bool told =
      life_ == Life::kRegistered && drained_sequence_ != 0 && sequence_taken_ >= drained_sequence_;
  if (!job_.has_value()) drained_at_ = std::min(drained_at_, now_);
  // A coordinator that has been silent for long gets one more short chance.
  const absl::Time heard = std::max(coordinator_heard_, drain_began_);
  const absl::Time silent_at =
      std::max(heard + options_.silence_deadline, drained_at_ + options_.silence_deadline / 4);
  const bool nobody_to_tell =
      life_ == Life::kNew || (life_ == Life::kRegistering && now_ >= silent_at);
  if (!told && !nobody_to_tell && now_ < std::min(drain_by_, silent_at)) return;
  if (job_.has_value()) CloseJob();
  life_ = Life::kExited;
  Do(action::Exit{
      told || nobody_to_tell || idle_
          ? exit_status_
          : absl::DeadlineExceededError("drained, but the coordinator did not answer in time")});
}

}  // namespace starling::session
