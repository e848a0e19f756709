// What to compute next, and which values it needs.
#include <algorithm>

#include "common/placement/layout.h"
#include "worker/core/core.h"

namespace starling::session {
namespace {

// One unit computes while pushes of the previous one are not all acked.
constexpr size_t kTrainingUnitsMax = 2;

bool Contains(const WorkRange& outer, const WorkRange& inner) {
  return outer.first <= inner.first && inner.first + inner.count <= outer.first + outer.count;
}

void AppendMissing(const WorkRange& range, const WorkRanges& have, WorkRanges* out) {
  bool touched = false;
  for (const WorkRange& h : have) {
    if (Contains(h, range)) return;
    touched |= Contains(range, h);
  }
  if (!touched) return out->push_back(range);
  WorkRange half = range;
  half.count /= 2;
  AppendMissing(half, have, out);
  half.first += half.count;
  AppendMissing(half, have, out);
}

}  // namespace

WorkRanges Missing(const WorkRanges& wanted, const WorkRanges& have) {
  WorkRanges missing;
  for (const WorkRange& range : wanted) AppendMissing(range, have, &missing);
  return missing;
}

void Core::Schedule() {
  if (!job_.has_value()) return;
  JobState& job = *job_;
  if (job.phase != JobPhase::kServing && job.phase != JobPhase::kLeaving) return;
  if (job.bsp()) {
    StartMissing();
    TurnToLatest();
    HelpOverdueStep();
  }
  bool started = true;
  while (started && job.computing.value == 0 && !WindingDown()) {
    started = false;
    if (!job.evaluation.empty() && job.member) {
      StartEvaluation();
    } else if (job.presence == Presence::kActive) {
      started = job.bsp() ? StartStep() : StartTraining();
    }
  }
  TellPrefetch();
}

size_t Core::TrainingUnits() const {
  return std::count_if(job_->units.begin(), job_->units.end(), [](const auto& entry) {
    return entry.second.purpose == WorkPurpose::kTrain;
  });
}

uint64_t Core::JobStep(const WorkRange& item) const {
  return item.epoch * job_->steps + item.first / job_->micro_batches;
}

// Whether a training unit may be computed next.
bool Core::HasTraining() const {
  const JobState& job = *job_;
  if (job.hold || job.policy_number != job.ordered_policy_number) return false;
  if (!job.bsp()) {
    return !job.training.empty() && JobStep(RangeOf(job.training.front().work())) < job.policy_end;
  }
  const uint64_t end =
      std::min({(job.epoch + uint64_t{1}) * job.steps, job.steps_in_job, job.policy_end});
  return job.training_open && static_cast<uint64_t>(job.clock) < end;
}

bool Core::MayBegin() const { return HasTraining() && TrainingUnits() < kTrainingUnitsMax; }

Activity Core::activity() const {
  if (!job_.has_value()) return Activity::kIdle;
  if (job_->computing.value != 0) {
    const bool train = job_->units.at(job_->computing).purpose == WorkPurpose::kTrain;
    return train ? Activity::kComputing : Activity::kEvaluating;
  }
  const bool trains = !WindingDown() && job_->presence == Presence::kActive && HasTraining();
  return trains ? Activity::kUnacked : Activity::kIdle;
}

void Core::StartEvaluation() {
  Unit unit;
  unit.purpose = WorkPurpose::kEvaluate;
  unit.lease = job_->evaluation.front();
  unit.ranges = {RangeOf(unit.lease.work())};
  unit.item = unit.ranges.front();
  unit.clock = unit.item.epoch;
  job_->evaluation.erase(job_->evaluation.begin());
  Begin(std::move(unit));
}

bool Core::StartTraining() {
  JobState& job = *job_;
  if (!MayBegin()) return false;
  const WorkRange item = RangeOf(job.training.front().work());
  Unit unit;
  unit.lease = job.training.front();
  unit.ranges = {item};
  unit.item = item;
  unit.closes = true;
  unit.clock = job.clock++;
  unit.job_step = JobStep(item);
  job.training.erase(job.training.begin());
  Begin(std::move(unit));
  return true;
}

bool Core::StartStep() {
  JobState& job = *job_;
  if (!MayBegin()) return false;
  const uint64_t step = job.clock;
  Unit unit;
  unit.ranges = Assigned(step);
  unit.item = {WorkPurpose::kTrain, static_cast<uint32_t>(step / job.steps),
               step % job.steps * job.micro_batches, job.micro_batches};
  unit.closes = true;
  unit.clock = job.clock++;
  unit.job_step = step;
  unit.repeats = Repeated();
  job.step_work[unit.clock] = {job.roster.number, unit.ranges};
  Begin(std::move(unit));
  return true;
}

// A new roster may give this worker more work in the current steps (BSP). Work that it has done is
// not repeated. A later step has to wait, since its values come only after this step is sealed.
void Core::StartMissing() {
  JobState& job = *job_;
  if (!job.member || job.presence != Presence::kActive) return;
  for (auto& [step, work] : job.step_work) {
    if (work.roster == job.roster.number) continue;
    WorkRanges missing;
    if (!Sealed(step)) missing = Missing(Assigned(step), work.ranges);
    if (missing.empty()) {
      work.roster = job.roster.number;
      continue;
    }
    if (!MayPutOff(step)) return;
    work.roster = job.roster.number;
    return BeginMore(step, std::move(missing), WorkerId());
  }
}

// Whether nothing is being computed, or a later step that has to wait for this one anyway.
bool Core::MayPutOff(Clock step) const {
  if (job_->computing.value == 0) return true;
  const Unit& computing = job_->units.at(job_->computing);
  return computing.purpose == WorkPurpose::kTrain && computing.clock > step;
}

// Computes more of a step that another unit closes. Puts off what MayPutOff.
void Core::BeginMore(Clock step, WorkRanges ranges, WorkerId repeats) {
  JobState& job = *job_;
  if (job.computing.value != 0) {
    job.clock = job.units.at(job.computing).clock;
    AbandonComputing();
  }
  Unit unit;
  unit.ranges = std::move(ranges);
  unit.item = unit.ranges.front();
  unit.clock = step;
  unit.job_step = step;
  unit.repeats = repeats;
  WorkRanges& done = job.step_work.at(step).ranges;
  done.insert(done.end(), unit.ranges.begin(), unit.ranges.end());
  Begin(std::move(unit));
}

// A value of version step + 1 proves that the step is sealed for that slice.
bool Core::Sealed(Clock step) const {
  for (size_t s = 0; s < job_->slices.size(); ++s) {
    if (job_->slices[s].contributes && job_->live[s].newest <= step) return false;
  }
  return true;
}

WorkRanges Core::Assigned(Clock step) const {
  const std::optional<size_t> owner = PartOwner();
  return owner.has_value() ? PartOf(*owner, step) : WorkRanges();
}

void Core::Begin(Unit unit) {
  JobState& job = *job_;
  unit.id = UnitId(next_unit_++);
  unit.began = now_;
  const bool train = unit.purpose == WorkPurpose::kTrain;
  if (train) {
    for (std::vector<uint32_t>* counts : {&unit.arrived, &unit.slices_left}) {
      if (spare_counts_.empty()) break;
      *counts = std::move(spare_counts_.back());
      spare_counts_.pop_back();
    }
    unit.arrived.assign(job.slices.size(), 0);
    unit.slices_left = job.contributing;
    unit.partitions_left = unit.closes ? job.contributing.size() : 0;
  }
  const UnitId id = unit.id;
  const Clock clock = unit.clock;
  Unit& begun = job.units[id] = std::move(unit);
  const Params params = train ? Params::kLive : Params::kSnapshot;
  if (!begun.ranges.empty()) {
    job.computing = id;
    // In BSP the step's decision skips whole steps, so gradients need not wait for each other.
    const bool whole = train && !job.bsp() && job.description.spec().precision() == PRECISION_FP16;
    Do(action::Compute{id, begun.ranges, clock, begun.job_step, begun.purpose, params, whole,
                       begun.repeats});
    for (uint32_t s = 0; s < job.slices.size(); ++s) Want(SliceId(s), params, clock);
    return;
  }
  // This worker has no part of this step: closes it at once and pulls the next step's values.
  begun.computed = true;
  if (static_cast<uint64_t>(clock + 1) < job.steps_in_job) {
    for (uint32_t s = 0; s < job.slices.size(); ++s) Want(SliceId(s), params, clock + 1);
  }
  for (uint32_t p = 0; p < job.contributing.size(); ++p) SendClose(begun, PartitionId(p));
}

// Keeps the finished unit's memory for the next units.
void Core::KeepCounts(Unit& unit) {
  for (std::vector<uint32_t>* counts : {&unit.arrived, &unit.slices_left}) {
    if (counts->capacity() > 0) spare_counts_.push_back(std::move(*counts));
  }
}

// Ensures that the slice has this version, or that a pull for exactly this version is open.
void Core::Want(SliceId slice, Params params, Clock clock) {
  JobState& job = *job_;
  const bool live = params == Params::kLive;
  Held& held = (live ? job.live : job.snapshot)[slice.value];
  // Frozen slices have only this version.
  if (live && !job.slices[slice.value].contributes) clock = 0;
  if (held.request != 0 && held.wanted == clock && held.version != clock) return;
  if (held.request != 0) Drop(held.request);
  if (held.version == clock) return;
  Request& pull =
      NewRequest(RequestKind::kPull, FrameType::kPull, job.slices[slice.value].partition);
  pull.header.key.slice = slice;
  if (live) {
    pull.header.clock = clock;
  } else {
    pull.header.key.work = {WorkPurpose::kEvaluate, static_cast<uint32_t>(clock), 0, 1};
  }
  held.request = pull.header.request_id;
  held.wanted = clock;
  Transmit(pull);
}

void Core::TellPrefetch() {
  JobState& job = *job_;
  if (job.prefetched_orders == orders_version_ && job.prefetched_clock == job.clock &&
      job.prefetched_unit == job.computing) {
    return;
  }
  job.prefetched_orders = orders_version_;
  job.prefetched_clock = job.clock;
  job.prefetched_unit = job.computing;
  const size_t most = options_.prefetch_ranges;
  WorkRanges next;
  for (const auto* queue : {&job.evaluation, &job.training}) {
    for (const Lease& lease : *queue) {
      if (next.size() < most) next.push_back(RangeOf(lease.work()));
    }
  }
  if (job.bsp() && job.member && !WindingDown()) {
    const uint64_t end = std::min({job.clock + most, job.steps_in_job, job.policy_end});
    for (uint64_t step = job.clock; step < end && next.size() < most; ++step) {
      for (const WorkRange& range : Assigned(step)) next.push_back(range);
    }
  }
  if (next == job.prefetched) return;
  job.prefetched = next;
  Do(action::Prefetch{std::move(next)});
}

}  // namespace starling::session
