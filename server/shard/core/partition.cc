#include "server/shard/core/partition.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "common/placement/layout.h"
#include "proto/coordinator.pb.h"

namespace starling {

Partition::Partition(PartitionConfig config, FirstState first)
    : config_(std::move(config)),
      applied_(&config_),
      ordered_(applied_),
      has_copy_(first == FirstState::kFirstValues) {
  for (const PartitionConfig::SliceInfo& info : config_.slices) {
    slices_.try_emplace(info.id, info, config_.micro_batches, config_.backup_workers);
  }
  if (config_.Decides()) decider_.emplace(config_.reporters);
  if (config_.start.has_value()) begun_steps_ = config_.start->step;
}

void Partition::Step(const PartitionEvent& event, absl::Time now, PartitionActions& actions) {
  now_ = now;
  actions_ = &actions;
  std::visit([this](const auto& e) { On(e); }, event);
  Settle();
  actions_ = nullptr;
}

// Each pass handles what the previous pass made possible. Every pass that causes another one has
// ordered a record or answered a request, so the loop ends.
void Partition::Settle() {
  ExpireParked();
  while (recheck_cut_ || recheck_policy_ || recheck_parked_ || recheck_closes_ || recheck_pulls_) {
    if (std::exchange(recheck_cut_, false)) TryCut();
    if (std::exchange(recheck_policy_, false)) TryPolicy();
    if (std::exchange(recheck_parked_, false)) Unpark();
    if (std::exchange(recheck_closes_, false)) TryCloses();
    if (std::exchange(recheck_pulls_, false)) TryAllPulls();
  }
  TryCheckpoint();
  TryReport();
  TryTalk();
}

Partition::SliceWork* Partition::FindSlice(SliceId id) {
  const auto it = slices_.find(id);
  return it == slices_.end() ? nullptr : &it->second;
}

const Partition::SliceWork* Partition::FindSlice(SliceId id) const {
  const auto it = slices_.find(id);
  return it == slices_.end() ? nullptr : &it->second;
}

uint64_t Partition::Sealed(const SliceWork& slice) const {
  return ordered_.slice(slice.info.id).updates + (held_.Find(slice.info.id) != nullptr ? 1 : 0);
}

FrameHeader Partition::AnswerTo(const FrameHeader& request, FrameType type, Answer answer) const {
  FrameHeader header;
  header.type = type;
  header.answer = answer;
  header.flags = request.flags;
  header.key = request.key;
  header.key.run = config_.run;
  header.partition = config_.partition;
  header.view = view_;
  header.roster = applied_.roster();
  header.policy = request.policy;
  header.origin = request.origin;
  header.request_id = request.request_id;
  header.clock = request.clock;
  header.reporter = request.reporter;
  return header;
}

void Partition::Ack(const Waiter& waiter, Answer answer, Lsn position, Clock clock) {
  SendFrame send{waiter.connection, AnswerTo(waiter.request, FrameType::kAck, answer), ""};
  send.header.base_lsn = position;
  send.header.clock = clock;
  if (answer == Answer::kAlreadyCounted) ++counters_.already_counted;
  Do(std::move(send));
}

void Partition::Refuse(const Waiter& waiter, Answer answer, const std::string& text, Clock clock) {
  SendFrame send{waiter.connection, AnswerTo(waiter.request, FrameType::kError, answer), text};
  send.header.kind = PayloadKind::kText;
  send.header.clock = clock;
  ++(answer < Answer::kBadFrame ? counters_.fenced : counters_.refused);
  Do(std::move(send));
}

void Partition::Refuse(const FrameReceived& frame, const Verdict& verdict) {
  Refuse(Waiter{frame.connection, frame.header}, verdict.answer, verdict.text, frame.header.clock);
  if (frame.payload.value != 0) Do(Release{frame.payload});
}

PartitionStatus Partition::Status() const {
  PartitionStatus status;
  status.mutable_run()->set_job_uid(config_.run.job.value);
  status.mutable_run()->set_era(config_.run.era);
  status.set_partition(config_.partition.value);
  status.set_view(view_.value);
  status.set_roster(applied_.roster().value);
  status.set_lsn(log_.applied().value);
  status.set_state_digest(applied_.digest());
  status.set_epoch(open_epoch_);
  status.set_cut_epochs(applied_.cut_epochs());
  if (applied_.cut_epochs() > open_epoch_) {
    status.set_covered_floor(config_.StepsIn(open_epoch_));
  } else if (const Coverage* covered = applied_.CoverageOf(open_epoch_); covered != nullptr) {
    status.set_covered_floor(covered->floor());
    for (const auto& [begin, end] : covered->ranges()) {
      if (status.covered_ranges_size() >= 2 * static_cast<int>(limits::kCoveredRangesReportedMax))
        break;
      status.add_covered_ranges(begin);
      status.add_covered_ranges(end);
    }
  }
  status.set_applied_min(applied_.applied_min());
  status.set_applied_max(applied_.applied_max());
  status.set_clock_min(applied_.clocks().min());
  status.set_clock_max(applied_.clocks().max());
  status.set_lag_max(lag_max_);
  for (const uint64_t count : lag_histogram_) status.add_lag_histogram(count);
  uint64_t elements = 0;
  for (const auto& [id, slice] : slices_) elements += slice.info.elements;
  status.set_value_bytes(elements * sizeof(float));
  if (applied_.bsp() && applied_.updates_any()) status.set_sealed_steps(applied_.LeastUpdates());
  status.set_policy(std::max(applied_.policy().number, drained_for_).value);
  status.set_begun_steps(begun_steps_);
  status.set_recent_lag(applied_.recent_lag());
  absl::Duration held = pulls_held_for_;
  for (const auto& [key, pull] : pulls_) {
    if (IsTrainingRequest(pull.request)) held += now_ - pull.since;
  }
  status.mutable_times()->set_gate(absl::ToDoubleSeconds(held));
  status.mutable_times()->set_pulls(values_sent_);
  if (config_.KeepsLossScale()) {
    status.set_loss_scale(std::ldexp(1.0, applied_.loss_scale().log2));
    status.set_skipped_steps(applied_.skipped_steps());
  }
  status.set_backup(!IsPrimary());
  status.set_backup_whole(talk_.whole);
  status.set_backup_frames(talk_.frames_acked);
  if (talk_.stage != Talk::Stage::kNone)
    status.set_backup_behind(log_.ordered().value - std::min(talk_.acked, log_.ordered()).value);
  status.set_undecided(UndecidedText());
  status.set_fault(fault_);
  status.set_diverged(diverged_);
  status.set_copies_differ(differs_);
  return status;
}

}  // namespace starling
