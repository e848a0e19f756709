#include "server/shard/core/partition_log.h"

#include <algorithm>
#include <utility>

namespace starling {

const PartitionLog::Entry& PartitionLog::Append(Entry entry) {
  ordered_ = entry.record.lsn;
  return pending_.emplace_back(std::move(entry));
}

void PartitionLog::CommitUpTo(Lsn lsn) {
  if (lsn > committed_) committed_ = std::min(lsn, ordered_);
}

PartitionLog::Entry* PartitionLog::Next() {
  if (handed_out_ >= committed_) return nullptr;
  Entry* next = Find(Lsn(handed_out_.value + 1));
  const bool may = next->record.kind == RecordKind::kApply || quiet();
  return may ? next : nullptr;
}

PartitionLog::Entry* PartitionLog::Find(Lsn lsn) {
  if (lsn <= applied_ || lsn > ordered_) return nullptr;
  return &pending_[lsn.value - applied_.value - 1];
}

bool PartitionLog::MarkDone(Lsn lsn) {
  Entry* entry = Find(lsn);
  if (entry == nullptr || lsn > handed_out_ || entry->done) return false;
  entry->done = true;
  return true;
}

std::optional<PartitionLog::Entry> PartitionLog::TakeDone() {
  if (pending_.empty() || !pending_.front().done) return std::nullopt;
  Entry entry = std::move(pending_.front());
  pending_.pop_front();
  applied_ = entry.record.lsn;
  return entry;
}

}  // namespace starling
