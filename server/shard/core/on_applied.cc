// A record's path through the log: it is ordered, committed, carried out, and takes effect.
// docs/protocol.md, section 11.
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

// A partition's own record fits its own state. Anything else is a bug that must not spread.
void Partition::MustRepeat(const Record& record, uint64_t digest, PartitionState& state) {
  const absl::Status fits = state.Repeat(record, digest);
  STARLING_CHECK(fits.ok(), std::string(fits.message()).c_str());
}

void Partition::Order(Record record, BufferId payload, Waiters waiters) {
  record.lsn = Lsn(ordered_.lsn().value + 1);
  record.view = view_;
  EncodeRecord(record, &encoded_);
  const uint64_t digest = LogDigest(ordered_.digest(), encoded_);
  MustRepeat(record, digest, ordered_);
  NoteOrdered(record);
  log_.Append({std::move(record), digest, payload, std::move(waiters)});
  SendRecords();
  Commit();
}

// Notes what may be decided now that this record is ordered.
void Partition::NoteOrdered(const Record& record) {
  if (decider_.has_value() && decider_->step() != ordered_.next_decision())
    decider_->BeginAt(ordered_.next_decision());
  if (record.kind != RecordKind::kApply) return;
  const uint32_t epoch = record.work.epoch;
  if (!ordered_.AllCover(epoch, config_.ItemOf(record.work))) return;
  recheck_closes_ = true;
  recheck_cut_ = recheck_cut_ || ordered_.Complete(epoch);
}

void Partition::Advance() {
  while (true) {
    if (std::optional<PartitionLog::Entry> entry = log_.TakeDone()) {
      TakeEffect(*std::move(entry));
      continue;
    }
    PartitionLog::Entry* entry = log_stopped_ ? nullptr : log_.Next();
    if (entry == nullptr || !MayHandOut(*entry)) return;
    log_.HandOut(*entry);
    if (entry->record.kind != RecordKind::kApply) {
      entry->done = true;  // needs nothing from the host
      continue;
    }
    const uint64_t version = applied_.bsp() ? static_cast<uint64_t>(entry->record.clock) : 0;
    const bool digest = backup_.value != 0 && IsChecked(entry->record.lsn);
    const bool looks =
        entry->record.scalars.t % kUpdatesToLook == 0 ||
        config_.JobStep(entry->record.work) + kUpdatesToLook >= static_cast<int64_t>(config_.steps);
    Do(ApplyNow{entry->record, entry->payload, version, digest, looks});
  }
}

void Partition::TakeEffect(PartitionLog::Entry entry) {
  const std::optional<uint32_t> copy_before = applied_.copy();
  MustRepeat(entry.record, entry.digest, applied_);
  if (effect_observer_) effect_observer_(entry.record);
  switch (entry.record.kind) {
    case RecordKind::kApply: FinishApply(entry); break;
    case RecordKind::kClose: FinishClose(entry); break;
    case RecordKind::kDecision: FinishDecision(); break;
    case RecordKind::kRoster: recheck_closes_ = recheck_pulls_ = true; break;
    case RecordKind::kPolicy: FinishPolicy(); break;
    case RecordKind::kCut: FinishCut(copy_before); break;
  }
  if (std::exchange(lsn_blocked_, false)) recheck_pulls_ = true;
}

// What the record leads to is not finite: neither it nor a record behind it takes effect, so
// everything that waits for them is refused.
void Partition::StopAt(PartitionLog::Entry& entry, const std::string& why) {
  if (fault_.empty()) {
    fault_ = why;
    diverged_ = true;
    Do(ReportFault{fault_, Origin()});
  }
  log_stopped_ = true;
  const auto refuse = [&](const auto& waiters) {
    for (const Waiter& waiter : waiters)
      Refuse(waiter, Answer::kStopped, fault_, waiter.request.clock);
  };
  for (PartitionLog::Entry& behind : log_.pending()) {
    if (behind.record.lsn < entry.record.lsn) continue;
    refuse(std::exchange(behind.waiters, {}));
    if (in_flight_.contains(behind.payload)) refuse(TakeInFlight(behind.payload).waiters);
  }
  for (const auto& [replica, queue] : std::exchange(closes_, {})) refuse(queue);
  for (const auto& [partition, waiter] : std::exchange(reporters_, {})) refuse(Waiters{waiter});
  RefuseHeld(Answer::kStopped, fault_);
  Do(Release{entry.payload});
}

void Partition::On(const Applied& applied) {
  PartitionLog::Entry* entry = log_.Find(applied.lsn);
  if (entry == nullptr || entry->done || entry->record.kind != RecordKind::kApply) return;
  const Record& record = entry->record;
  const auto step = config_.JobStep(record.work);
  if (applied.first_non_finite >= 0)
    return StopAt(*entry, OverflowText(record.slice, applied.first_non_finite, step));
  if (applied.new_non_finite >= 0 && !DefenceMasked(Defence::kFiniteCheck))
    return StopAt(*entry, NotFiniteText(record.slice, applied.new_non_finite, step));
  if (backup_.value != 0 && IsChecked(applied.lsn)) {
    checks_.emplace_back(applied.lsn, applied.digest);
    if (checks_.size() > limits::kRecordsInFlightMax) checks_.pop_front();
  }
  if (log_.MarkDone(applied.lsn)) Advance();
}

void Partition::FinishApply(PartitionLog::Entry& entry) {
  const Record& record = entry.record;
  if (in_flight_.contains(entry.payload)) entry.waiters = TakeInFlight(entry.payload).waiters;
  if (DefenceMasked(Defence::kBatchKey))
    counted_from_[InFlightKey(record.slice, record.work)] = record.origin.replica;
  for (const Waiter& waiter : entry.waiters)
    Ack(waiter, Answer::kCounted, record.lsn, waiter.request.clock);
  Do(Release{entry.payload});
  recheck_policy_ = true;
  if (applied_.bsp()) TryPullsOf(record.slice);
}

}  // namespace starling
