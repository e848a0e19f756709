// Checks whether a record fits the state. A primary's own records always do; those of a damaged or
// foreign log may not.
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/defences.h"
#include "common/protocol/frame.h"
#include "server/shard/core/partition_state.h"

namespace starling {
namespace {

constexpr char kOtherLog[] =
    "it is of another partition, or its log is damaged: read it again "
    "from its primary";

absl::Status Refuse(const Record& record, absl::string_view expected, absl::string_view came) {
  return absl::InvalidArgumentError(absl::StrCat("record ", record.lsn.value, ": expected ",
                                                 expected, ", not ", came, "; ", kOtherLog));
}

template <typename T>
absl::Status CheckEqual(const Record& record, absl::string_view field, T expected, T came) {
  if (came == expected) return absl::OkStatus();
  return Refuse(record, absl::StrCat(field, " ", expected), absl::StrCat(came));
}

std::string OriginText(const Origin& origin) {
  return absl::StrCat("replica ", origin.replica.value, " on worker ", origin.worker.value, ".",
                      origin.incarnation.value);
}

}  // namespace

// While a defence is masked, records that do not fit may pass, so that the checkers of its promise
// can notice.
absl::Status PartitionState::Check(const Record& record) const {
  if (record.lsn.value != lsn_.value + 1) {
    return absl::FailedPreconditionError(absl::StrCat("record ", record.lsn.value,
                                                      ": expected position ", lsn_.value + 1,
                                                      "; repeat records in order, each once"));
  }
  if (record.view < view_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "record ", record.lsn.value, ": expected view ", view_.value, " or later, not ",
        record.view.value, "; its sender is the primary no more: ask the coordinator"));
  }
  if (record.skipped && !config_->scales_loss) return Refuse(record, "no skipped work", "some");
  switch (record.kind) {
    case RecordKind::kApply: return CheckApply(record);
    case RecordKind::kClose: return CheckClose(record);
    case RecordKind::kDecision: return CheckDecision(record);
    case RecordKind::kRoster:
      if (record.roster.number > roster_) return absl::OkStatus();
      return Refuse(record, absl::StrCat("a roster above ", roster_.value),
                    absl::StrCat(record.roster.number.value));
    case RecordKind::kPolicy: return CheckPolicy(record);
    case RecordKind::kCut: return CheckCut(record);
  }
  return Refuse(record, "a known kind", absl::StrCat(static_cast<int>(record.kind)));
}

absl::Status PartitionState::CheckApply(const Record& record) const {
  const auto it = slices_.find(record.slice);
  if (it == slices_.end() || !it->second.info->updated) {
    return Refuse(record,
                  absl::StrCat("a slice that partition ", config_->partition.value, " updates"),
                  absl::StrCat(record.slice.value));
  }
  STARLING_RETURN_IF_ERROR(
      CheckEqual(record, "elements", it->second.info->elements, record.elements));
  const WorkRange& work = record.work;
  if (work.purpose != WorkPurpose::kTrain || work != config_->ItemRange(work) ||
      config_->ItemOf(work) >= config_->StepsIn(work.epoch)) {
    return Refuse(record, "a whole step of training",
                  absl::StrCat("epoch ", work.epoch, " [", work.first, ", +", work.count, ")"));
  }
  STARLING_RETURN_IF_ERROR(
      CheckEqual<uint64_t>(record, "samples", config_->SamplesIn(work), record.samples));
  if (DecisionsUnguarded()) return absl::OkStatus();
  return CheckOrder(record, it->second.state);
}

absl::Status PartitionState::CheckOrder(const Record& record, const SliceState& slice) const {
  const WorkRange& work = record.work;
  STARLING_RETURN_IF_ERROR(CheckEqual(record, "epoch", cut_epochs_, work.epoch));
  const uint64_t item = config_->ItemOf(work);
  if (Covers(record.slice, work.epoch, item)) {
    return Refuse(record, absl::StrCat("a step that slice ", record.slice.value, " does not cover"),
                  absl::StrCat(item));
  }
  if (bsp()) {
    STARLING_RETURN_IF_ERROR(
        CheckEqual<int64_t>(record, "step", config_->JobStep(work), record.clock));
    STARLING_RETURN_IF_ERROR(
        CheckEqual<int64_t>(record, "step", static_cast<int64_t>(slice.updates), record.clock));
  }
  return CheckEqual<int64_t>(record, "t", NextT(record.slice), record.scalars.t);
}

absl::Status PartitionState::CheckClose(const Record& record) const {
  const ClockTable::Replica* replica = clocks_.Find(record.origin.replica);
  if (replica == nullptr || (!clocks_.IsMember(record.origin) && !DecisionsUnguarded())) {
    return Refuse(record, absl::StrCat("a member of roster ", roster_.value),
                  OriginText(record.origin));
  }
  if (record.flags & frame_flags::kEnter) return absl::OkStatus();
  if (record.flags & frame_flags::kSkip) {
    if (record.clock > replica->clock) return absl::OkStatus();
    return Refuse(record, absl::StrCat("a clock above ", replica->clock),
                  absl::StrCat(record.clock));
  }
  const Clock ticks = (record.flags & frame_flags::kPark) != 0 ? 0 : 1;
  return CheckEqual(record, "clock", replica->clock + ticks, record.clock);
}

absl::Status PartitionState::CheckDecision(const Record& record) const {
  if (!config_->Decides()) {
    return Refuse(record, absl::StrCat("no decision, in partition ", config_->partition.value),
                  "one");
  }
  if (record.clock >= static_cast<Clock>(config_->steps)) {
    return Refuse(record, absl::StrCat("a step below ", config_->steps),
                  absl::StrCat(record.clock));
  }
  if (DecisionsUnguarded()) return absl::OkStatus();
  return CheckEqual(record, "decision about step", next_decision_, record.clock);
}

absl::Status PartitionState::CheckPolicy(const Record& record) const {
  if (record.policy.number <= policy_.number) {
    return Refuse(record, absl::StrCat("a policy above ", policy_.number.value),
                  absl::StrCat(record.policy.number.value));
  }
  if (DecisionsUnguarded()) return absl::OkStatus();
  const uint64_t most = CoveredSteps();
  if (record.policy.step >= policy_.step && record.policy.step <= most) return absl::OkStatus();
  return Refuse(record, absl::StrCat("a policy from step ", policy_.step, " to ", most),
                absl::StrCat(record.policy.step));
}

absl::Status PartitionState::CheckCut(const Record& record) const {
  STARLING_RETURN_IF_ERROR(CheckEqual(record, "cut of epoch", cut_epochs_, record.work.epoch));
  if (record.work.epoch >= config_->Epochs() || !Complete(record.work.epoch)) {
    return Refuse(record, "a cut of an epoch that is covered", absl::StrCat(record.work.epoch));
  }
  return absl::OkStatus();
}

}  // namespace starling
