#include "server/shard/core/partition_log.h"

#include <utility>

#include "common/defences.h"
#include "common/protocol/limits.h"

namespace starling {
PartitionLog::Entry& PartitionLog::Append(Record record, BufferId payload, Waiters waiters) {
  record.lsn = ordered_ = Lsn(ordered_.value + 1);
  EncodeRecord(record, &encoded_);
  digest_ = LogDigest(digest_, encoded_);
  return pending_.emplace_back(Entry{std::move(record), payload, std::move(waiters), false});
}

PartitionLog::Entry* PartitionLog::NextToApply() {
  const Lsn limit = DefenceMasked(Defence::kCommitBeforeApply) ? ordered_ : committed_;
  if (handed_out_ >= limit) return nullptr;
  handed_out_ = Lsn(handed_out_.value + 1);
  return Find(handed_out_);
}

PartitionLog::Entry* PartitionLog::Find(Lsn lsn) {
  if (lsn <= applied_ || lsn > ordered_) return nullptr;
  return &pending_[lsn.value - applied_.value - 1];
}

bool PartitionLog::MarkApplied(Lsn lsn) {
  Entry* entry = Find(lsn);
  if (entry == nullptr || lsn > handed_out_ || entry->applied) return false;
  entry->applied = true;
  while (!pending_.empty() && pending_.front().applied) {
    applied_ = pending_.front().record.lsn;
    recent_.push_back(std::move(pending_.front().record));
    if (recent_.size() > limits::kRecentRecordsKept) recent_.pop_front();
    pending_.pop_front();
  }
  return true;
}

void PartitionLog::CommitUpTo(Lsn lsn) {
  if (lsn > committed_) committed_ = lsn < ordered_ ? lsn : ordered_;
}

}  // namespace starling
