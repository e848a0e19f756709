// The way of a record through the log: ordered, committed, applied. docs/protocol.md, section 2.
#include <utility>

#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

void Partition::Order(Record record, BufferId payload, Waiters waiters, PartitionActions& actions) {
  record.view = view_;
  const PartitionLog::Entry& entry = log_.Append(std::move(record), payload, std::move(waiters));
  if (backup_.value == 0) {
    log_.CommitUpTo(log_.ordered());
  } else {
    actions.push_back(Replicate{entry.record, payload});
  }
  Advance(actions);
}

void Partition::Advance(PartitionActions& actions) {
  while (PartitionLog::Entry* entry = log_.NextToApply()) {
    switch (entry->record.kind) {
      case RecordKind::kApply: {
        const uint64_t version = bsp() ? static_cast<uint64_t>(entry->record.clock) : 0;
        actions.push_back(ApplyNow{entry->record, entry->payload, version});
        continue;  // until the adaptor says so
      }
      case RecordKind::kClose: CommitClose(*entry, actions); break;
      case RecordKind::kCut: CommitCut(entry->record, actions); break;
      case RecordKind::kDecision: CommitDecision(entry->record, actions); break;
      default: break;  // rosters and policies count from the moment they are ordered
    }
    log_.MarkApplied(entry->record.lsn);
    if (std::exchange(lsn_blocked_, false)) recheck_pulls_ = true;
  }
}

void Partition::OnBackupHas(Lsn lsn, PartitionActions& actions) {
  log_.CommitUpTo(lsn);
  Advance(actions);
}

// Nothing of it is applied, and nothing ever will be: the partition has stopped.
void Partition::RefuseSum(PartitionLog::Entry& entry, int64_t first_non_finite,
                          PartitionActions& actions) {
  if (fault_.empty()) {
    fault_ = OverflowText(entry.record.slice, first_non_finite, JobStep(entry.record.work));
    actions.push_back(ReportFault{fault_, Origin()});
  }
  for (const Waiter& waiter : std::exchange(entry.waiters, {}))
    Refuse(waiter, Answer::kNonFinite, fault_, actions, waiter.request.clock);
  actions.push_back(Release{entry.payload});
}

void Partition::OnApplied(const Applied& applied, PartitionActions& actions) {
  const Lsn lsn = applied.lsn;
  PartitionLog::Entry* entry = log_.Find(lsn);
  if (entry == nullptr || entry->applied || entry->record.kind != RecordKind::kApply) return;
  if (applied.first_non_finite >= 0) return RefuseSum(*entry, applied.first_non_finite, actions);
  const Record record = entry->record;
  const BufferId payload = entry->payload;
  Waiters waiters = std::move(entry->waiters);
  if (!log_.MarkApplied(lsn)) return;

  SliceState& slice = *FindSlice(record.slice);
  // Of a slice that is applied out of order the newest record counts: what is sent is all of them.
  const Lsn before = slice.version_lsn[slice.applied % 2];
  ++slice.applied;
  slice.version_lsn[slice.applied % 2] = std::max(lsn, before);
  NoteLossScale(slice, record, before);
  if (!bsp()) waiters = TakeInFlight(payload).waiters;
  if (DefenceMasked(Defence::kBatchKey))
    counted_from_[InFlightKey(record.slice, record.work)] = record.origin.replica;
  MarkCovered(slice, record.work);
  for (const Waiter& waiter : waiters)
    Ack(waiter, Answer::kCounted, lsn, waiter.request.clock, actions);
  actions.push_back(Release{payload});
  if (next_policy_.has_value()) recheck_policy_ = true;
  if (bsp()) TryPullsOf(record.slice, actions);
  if (std::exchange(lsn_blocked_, false)) recheck_pulls_ = true;
}

void Partition::MarkCovered(SliceState& slice, const WorkRange& work) {
  const uint64_t item = ItemOf(work);
  ++slice.applied_in_epoch;
  if (CoversItem(slice, work.epoch, item)) return;  // counted twice: a defence is masked
  const auto partly = partly_covered_.try_emplace({work.epoch, item}).first;
  partly->second.slices.resize((updated_slices_ + 63) / 64);
  partly->second.slices[slice.index / 64] |= uint64_t{1} << (slice.index % 64);
  if (++partly->second.count < updated_slices_) return;
  partly_covered_.erase(partly);
  Coverage& all = all_covered_.try_emplace(work.epoch, config_.StepsIn(work.epoch)).first->second;
  all.Mark(item);
  recheck_closes_ = true;
  recheck_cut_ = recheck_cut_ || all.complete();
}

}  // namespace starling
