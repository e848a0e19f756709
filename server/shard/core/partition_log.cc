#include "server/shard/core/partition_log.h"

#include <array>
#include <bit>
#include <utility>

#include "common/defences.h"
#include "common/protocol/limits.h"
#include "xxhash.h"

namespace starling {
namespace {

uint64_t DigestWith(uint64_t before, const LogRecord& r) {
  const std::array<uint64_t, 25> fields = {
      r.lsn.value,
      r.view.value,
      static_cast<uint64_t>(r.kind),
      r.slice.value,
      static_cast<uint64_t>(r.work.purpose),
      r.work.epoch,
      r.work.first,
      r.work.count,
      r.origin.replica.value,
      r.origin.worker.value,
      r.origin.incarnation.value,
      r.origin.attempt,
      static_cast<uint64_t>(r.clock),
      r.flags,
      std::bit_cast<uint32_t>(r.scalars.rate),
      std::bit_cast<uint32_t>(r.scalars.scale),
      std::bit_cast<uint64_t>(r.scalars.decay),
      static_cast<uint64_t>(r.scalars.t),
      r.scalars.lag,
      r.digest,
      r.roster.value,
      r.policy.number.value,
      static_cast<uint64_t>(r.policy.policy.kind),
      r.policy.policy.staleness,
      r.policy.step,
  };
  return XXH3_64bits_withSeed(fields.data(), sizeof(fields), before);
}

}  // namespace

PartitionLog::Entry& PartitionLog::Append(LogRecord record, BufferId payload, Waiters waiters) {
  record.lsn = ordered_ = Lsn(ordered_.value + 1);
  digest_ = DigestWith(digest_, record);
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
