// Results of the executor: gradients become pushes, a finished unit becomes closes.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "worker/core/core.h"

namespace starling::session {

void Core::On(const event::SliceGradient& e) {
  const auto it = job_.has_value() ? job_->units.find(e.unit) : decltype(job_->units.end())();
  if (!job_.has_value() || it == job_->units.end() || job_->computing != e.unit) {
    return Release(e.buffer);
  }
  JobState& job = *job_;
  Unit& unit = it->second;
  const SliceShape& shape = job.slices[e.slice.value];
  Request& push = NewRequest(RequestKind::kPush, FrameType::kPush, shape.partition);
  push.buffer = e.buffer;
  push.unit = unit.id;
  FrameHeader& h = push.header;
  h.kind = PayloadKind::kDense;
  h.key.slice = e.slice;
  h.key.work = unit.ranges[e.range];
  h.origin.attempt = unit.lease.attempt();
  h.samples = e.samples;
  if (e.skipped) h.flags |= frame_flags::kSkipped;
  h.loss_scale_log2 = e.loss_scale_log2;
  h.clock = unit.clock;
  h.base_lsn = job.live[e.slice.value].lsn;
  h.elements = shape.elements;
  h.payload_bytes = shape.elements * sizeof(float);
  ++unit.pushes_open;
  Transmit(push);
  if (++unit.arrived[e.slice.value] < unit.ranges.size()) return;
  const bool more = !job.bsp() || static_cast<uint64_t>(unit.clock + 1) < job.steps_in_job;
  if (more && !WindingDown()) Want(e.slice, Params::kLive, unit.clock + 1);
  if (--unit.slices_left[shape.partition.value] == 0) SendClose(unit, shape.partition);
}

void Core::SendClose(Unit& unit, PartitionId partition) {
  if (!unit.closes) return;
  Request& close = NewRequest(RequestKind::kClose, FrameType::kClose, partition);
  close.unit = unit.id;
  close.header.key.work = unit.item;
  close.header.origin.attempt = unit.lease.attempt();
  close.header.clock = unit.clock;
  --unit.partitions_left;
  ++unit.closes_open;
  Transmit(close);
}

void Core::On(const event::UnitComputed& e) {
  if (!job_.has_value() || job_->computing != e.unit) return;
  JobState& job = *job_;
  Unit& unit = job.units.at(e.unit);
  if (!e.finite) {
    const std::string layer =
        e.bad_layer.empty() ? ""
                            : absl::StrCat("; the first such output is layer '", e.bad_layer, "'s");
    return BreakNonFinite(&unit, unit.item, absl::StrCat("the loss is not finite", layer));
  }
  job.computing = UnitId();
  unit.computed = true;
  for (size_t i = 0; i < unit.ranges.size() && i < e.metrics.size(); ++i) {
    Finished& finished = finished_.emplace_back();
    finished.run = job_->run;
    StepMetrics& m = finished.metrics;
    SetWork(unit.ranges[i], m.mutable_work());
    m.set_loss_sum(e.metrics[i].loss_sum);
    m.set_samples(e.metrics[i].samples);
    m.set_correct(e.metrics[i].correct);
  }
  // While no coordinator accepts them, the oldest are dropped. That loses a loss, or repeats an
  // evaluation unit.
  while (finished_.size() > options_.metrics_waiting) finished_.pop_front();
  news_ = true;
  if (unit.closes) {  // no push has closed partitions with only frozen slices
    for (uint32_t p = 0; p < job.contributing.size(); ++p) {
      if (job.contributing[p] == 0) SendClose(unit, PartitionId(p));
    }
  }
  MaybeDone(e.unit);
}

void Core::On(const event::UnitFailed& e) {
  if (!job_.has_value() || job_->computing != e.unit) return;
  if (e.device_lost) {
    exit_status_ = e.status;
    DropUnit(e.unit);
    return On(event::Drain{});
  }
  const bool data = absl::IsDataLoss(e.status) || absl::IsNotFound(e.status);
  Break(data ? Fault::DATA : Fault::INTERNAL,
        absl::StrCat(Blame(&job_->units.at(e.unit)), ": ", std::string(e.status.message())));
}

// A unit is over when it was computed and all its requests were answered. Its lease is done then.
// In BSP the step is sealed everywhere, so extra work for it is useless.
void Core::MaybeDone(UnitId id) {
  JobState& job = *job_;
  const auto it = job.units.find(id);
  if (it == job.units.end() || !it->second.done()) return;
  KeepCounts(it->second);
  const Unit unit = std::move(it->second);
  job.units.erase(it);
  if (unit.lease.id() != 0) job.done[unit.lease.id()] = unit.lease;
  news_ = true;
  if (!job.bsp() || unit.purpose != WorkPurpose::kTrain) return;
  if (unit.closes) NoteStep();
  if (unit.closes && job.computing.value != 0) {
    const Unit& computing = job.units.at(job.computing);
    if (computing.purpose == WorkPurpose::kTrain && computing.clock == unit.clock)
      AbandonComputing();
  }
  ForgetStepWithoutUnits(unit.clock);
}

void Core::ForgetStepWithoutUnits(Clock step) {
  const auto of_step = [step](const auto& entry) {
    return entry.second.purpose == WorkPurpose::kTrain && entry.second.clock == step;
  };
  if (absl::c_none_of(job_->units, of_step)) job_->step_work.erase(step);
}

void Core::AbandonComputing() {
  if (job_->computing.value != 0) DropUnit(job_->computing);
}

// Forgets the unit and its open requests. Its ranges count as not computed.
void Core::DropUnit(UnitId id) {
  JobState& job = *job_;
  if (job.computing == id) {
    job.computing = UnitId();
    Do(action::Abandon{id});
  }
  DropRequests([id](const Request& request) { return request.unit == id; });
  KeepCounts(job.units.at(id));
  const Unit unit = std::move(job.units.at(id));
  job.units.erase(id);
  const auto work = job.step_work.find(unit.clock);
  if (unit.purpose != WorkPurpose::kTrain || work == job.step_work.end()) return;
  auto& ranges = work->second.ranges;
  ranges.erase(std::remove_if(ranges.begin(), ranges.end(),
                              [&](const WorkRange& range) {
                                return std::find(unit.ranges.begin(), unit.ranges.end(), range) !=
                                       unit.ranges.end();
                              }),
               ranges.end());
  ForgetStepWithoutUnits(unit.clock);
}

// Drops all training in progress, and the presence with it. Evaluation goes on.
void Core::DropTraining() {
  JobState& job = *job_;
  for (auto it = job.units.begin(); it != job.units.end();) {
    const UnitId id = it->first;
    const bool train = it->second.purpose == WorkPurpose::kTrain;
    ++it;
    if (train) DropUnit(id);
  }
  DropRequests([](const Request& request) { return !IsEvaluationPull(request); });
  job.step_work.clear();
  job.stepped_at = absl::InfinitePast();
  job.presence = Presence::kParked;
  job.answers_left = 0;
}

std::string Core::Blame(const Unit* unit) const {
  std::string text = absl::StrCat("worker ", options_.name, " (id ", worker_.value, ")");
  if (unit == nullptr || unit->ranges.empty()) return text;
  const WorkRange& range = unit->ranges.front();
  return absl::StrCat(range.purpose == WorkPurpose::kEvaluate ? "evaluation of epoch " : "step ",
                      range.purpose == WorkPurpose::kEvaluate ? range.epoch : unit->job_step,
                      " (epoch ", range.epoch, ", micro-batches from ", range.first, "), ", text);
}

}  // namespace starling::session
