// PULL: answered when the consistency gate opens. docs/protocol.md, sections 3 and 4.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {
namespace {

uint32_t Micros(absl::Duration time) {
  return static_cast<uint32_t>(std::clamp<int64_t>(absl::ToInt64Microseconds(time), 0,
                                                   std::numeric_limits<uint32_t>::max()));
}

}  // namespace

void Partition::OnPull(const FrameReceived& frame) {
  const FrameHeader& header = frame.header;
  const bool training = IsTrainingRequest(header);
  const PullKey key{header.key.slice, training ? WorkPurpose::kTrain : header.key.work.purpose,
                    (header.flags & frame_flags::kReader) != 0,
                    training ? header.origin.replica.value : frame.connection.value};
  if (const auto older = pulls_.find(key); older != pulls_.end()) {
    EndHold(older->second);
    pulls_.erase(older);
    ++counters_.superseded_pulls;
  }
  const WaitingPull pull{{frame.connection, header}, now_};
  if (TryPull(pull) == PullState::kAnswered) return;
  ++counters_.blocked_pulls;
  pulls_.insert_or_assign(key, pull);
}

Partition::PullState Partition::TryPull(const WaitingPull& pull) {
  const FrameHeader& request = pull.request;
  if (request.key.work.purpose == WorkPurpose::kEvaluate) return TryEvaluationPull(pull);
  const PartitionConfig::SliceInfo& info = FindSlice(request.key.slice)->info;
  const bool reader = (request.flags & frame_flags::kReader) != 0;
  const bool exact = reader && (request.flags & frame_flags::kVersion) != 0;
  if (exact && info.updated) return ReadVersion(pull);
  if (reader || !info.updated) {
    SendSlice(pull, ValueSource::kCurrent, NewestVersion(info.id), log_.applied());
    return PullState::kAnswered;
  }
  if (applied_.bsp()) return TryBspPull(pull);
  const ReplicaId puller = request.origin.replica;
  const ClockTable::Replica* replica = applied_.clocks().Find(puller);
  const bool joins = replica == nullptr && ordered_.clocks().Find(puller) != nullptr;
  if (joins || (replica != nullptr && !replica->active)) return PullState::kWait;
  const ConsistencyPolicy& policy = applied_.policy().policy;
  const bool close_enough =
      policy.kind == PolicyKind::kAsync ||
      applied_.clocks().min() >= request.clock - static_cast<Clock>(policy.staleness);
  if (!close_enough && !DefenceMasked(Defence::kRequiredClock)) return PullState::kWait;
  if (log_.applied() < request.min_lsn && !DefenceMasked(Defence::kMinLsn)) {
    lsn_blocked_ = true;
    return PullState::kWait;
  }
  SendSlice(pull, ValueSource::kCurrent, 0, log_.applied());
  return PullState::kAnswered;
}

// BSP: the newest version that is sealed and applied. Other policies have only one.
uint64_t Partition::NewestVersion(SliceId slice) const {
  return applied_.bsp() ? applied_.slice(slice).updates : 0;
}

// After n applied seals, versions n and n-1 exist until the next apply starts to overwrite n-1.
bool Partition::IsGone(const SliceWork& slice, uint64_t version) const {
  return version + 1 < Sealed(slice) || version < applied_.policy().step;
}

Partition::PullState Partition::TryBspPull(const WaitingPull& pull) {
  const SliceWork& slice = *FindSlice(pull.request.key.slice);
  const SliceState& state = applied_.slice(slice.info.id);
  auto version = static_cast<uint64_t>(pull.request.clock);
  if (version > config_.steps) {
    Refuse(pull, Answer::kBadFrame,
           absl::StrCat("clock ", version, "; the job has ", config_.steps, " steps"),
           pull.request.clock);
    return PullState::kAnswered;
  }
  if (version > state.updates) {
    if (!DefenceMasked(Defence::kRequiredClock)) return PullState::kWait;
    version = state.updates;
  }
  if (IsGone(slice, version)) {
    Refuse(pull, Answer::kStaleClock,
           absl::StrCat("version ", version, " is gone: slice ", pull.request.key.slice.value,
                        " has sealed ", Sealed(slice)),
           static_cast<Clock>(state.updates));
    return PullState::kAnswered;
  }
  SendSlice(pull, ValueSource::kCurrent, version, state.version_lsn[version % 2]);
  return PullState::kAnswered;
}

// Slices are at most one step apart, so all of them have the version of the least sealed one.
Partition::PullState Partition::ReadVersion(const WaitingPull& pull) {
  const SliceWork& slice = *FindSlice(pull.request.key.slice);
  const SliceState& state = applied_.slice(slice.info.id);
  const auto version = static_cast<uint64_t>(pull.request.clock);
  if (!applied_.bsp()) {
    Refuse(pull, Answer::kStaleClock,
           absl::StrCat("version ", version, " is not here: the policy is no longer BSP"),
           static_cast<Clock>(state.updates));
  } else if (version > state.updates || IsGone(slice, version)) {
    Refuse(pull, Answer::kStaleClock,
           absl::StrCat("version ", version, " is not here: slice ", slice.info.id.value,
                        " has sealed ", state.updates),
           static_cast<Clock>(state.updates));
  } else {
    SendSlice(pull, ValueSource::kCurrent, version, state.version_lsn[version % 2]);
  }
  return PullState::kAnswered;
}

Partition::PullState Partition::TryEvaluationPull(const WaitingPull& pull) {
  const uint32_t epoch = pull.request.key.work.epoch;
  if (epoch >= config_.Epochs()) {
    Refuse(pull, Answer::kBadFrame,
           absl::StrCat("cut of epoch ", epoch, "; the job has ", config_.Epochs()));
    return PullState::kAnswered;
  }
  const bool stopped =
      training_end_.value_or(0) > 0 && epoch == (*training_end_ - 1) / config_.FullSteps();
  if (!stopped && epoch >= applied_.cut_epochs() &&
      (pull.request.flags & frame_flags::kReader) == 0)
    return PullState::kWait;
  if (stopped || (epoch + 1 == config_.Epochs() &&
                  epoch < applied_.cut_epochs())) {  // the values do not change any more
    SendSlice(pull, ValueSource::kCurrent, NewestVersion(pull.request.key.slice), log_.applied());
    return PullState::kAnswered;
  }
  if (late_copy_ == epoch) {
    Do(CopyForCut{epoch});
    late_copy_.reset();
  }
  const std::optional<uint32_t> copy = applied_.copy();
  if (copy != epoch) {
    Refuse(
        pull, Answer::kStaleClock,
        absl::StrCat("there is no copy of epoch ", epoch, "; epochs cut: ", applied_.cut_epochs(),
                     ", copy held: ", copy.has_value() ? absl::StrCat(*copy) : "none"),
        applied_.cut_epochs());
    return PullState::kAnswered;
  }
  SendSlice(pull, ValueSource::kCutCopy, epoch, applied_.copy_lsn());
  return PullState::kAnswered;
}

// The pull is over: it was answered, or its sender no longer waits.
void Partition::EndHold(const WaitingPull& pull) {
  if (IsTrainingRequest(pull.request)) pulls_held_for_ += now_ - pull.since;
}

void Partition::ErasePulls(absl::FunctionRef<bool(const WaitingPull&)> over) {
  absl::erase_if(pulls_, [&](const auto& pull) {
    if (!over(pull.second)) return false;
    EndHold(pull.second);
    return true;
  });
}

bool Partition::HoldsTrainingPulls() const {
  return std::any_of(pulls_.begin(), pulls_.end(),
                     [](const auto& pull) { return IsTrainingRequest(pull.second.request); });
}

void Partition::SendSlice(const WaitingPull& pull, ValueSource source, uint64_t version,
                          Lsn position) {
  SendValue send{pull.connection, AnswerTo(pull.request, FrameType::kValue, Answer::kNone), source,
                 version};
  send.header.kind = PayloadKind::kDense;
  send.header.elements = FindSlice(pull.request.key.slice)->info.elements;
  send.header.base_lsn = position;
  if (source == ValueSource::kCurrent) {
    const SliceId slice = pull.request.key.slice;
    const uint64_t held = applied_.bsp() ? version : applied_.slice(slice).updates;
    send.header.loss_scale_log2 = static_cast<uint8_t>(LossScaleOf(slice, held));
  }
  send.header.held_us = Micros(now_ - pull.since);
  if (config_.backup_workers > 0 && applied_.bsp() && IsTrainingRequest(pull.request)) {
    const Lateness::Late late = FindSlice(pull.request.key.slice)->lateness.Of(version);
    send.header.late_us = Micros(late.by);
    send.header.late_part = late.part;
  }
  Do(std::move(send));
  if (!IsTrainingRequest(pull.request)) return;
  // How far the sender is ahead of the slowest replica, which is what the gate bounds. A BSP value
  // is exact.
  const uint64_t lag =
      applied_.bsp() ? 0 : applied_.clocks().Lead(pull.request.origin.replica, pull.request.clock);
  ++values_sent_;
  lag_max_ = std::max(lag_max_, lag);
  ++lag_histogram_[std::min<uint64_t>(lag, limits::kLagBuckets - 1)];
}

void Partition::TryPullsOf(SliceId slice) {
  auto it = pulls_.lower_bound(PullKey{slice, WorkPurpose::kNone, 0});
  while (it != pulls_.end() && it->first.slice == slice) {
    if (TryPull(it->second) == PullState::kWait) {
      ++it;
    } else {
      EndHold(it->second);
      it = pulls_.erase(it);
    }
  }
}

void Partition::TryAllPulls() {
  ErasePulls([&](const WaitingPull& pull) { return TryPull(pull) == PullState::kAnswered; });
}

}  // namespace starling
