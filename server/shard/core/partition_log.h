// A partition's log: ordered, then committed (the backup has it, or there is none), then applied.
// Holds the records that are not applied yet and the last ones that were, and a digest over all.
#ifndef STARLING_SERVER_SHARD_CORE_PARTITION_LOG_H_
#define STARLING_SERVER_SHARD_CORE_PARTITION_LOG_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/inlined_vector.h"
#include "common/protocol/frame.h"
#include "common/protocol/record.h"
#include "server/shard/core/events.h"

namespace starling {

// Not thread-safe.
class PartitionLog {
 public:
  // Somebody who is owed an answer.
  struct Waiter {
    ConnectionId connection;
    FrameHeader request;
  };
  using Waiters = absl::InlinedVector<Waiter, 1>;

  struct Entry {
    Record record;
    BufferId payload;  // kApply only
    Waiters waiters;
    bool applied = false;
  };

  // Gives the record its position. The entry is valid until the next call.
  Entry& Append(Record record, BufferId payload, Waiters waiters);

  // The oldest entry that is committed and was not handed out yet; nullptr: none. Stays valid until
  // MarkApplied.
  Entry* NextToApply();

  // The entry of a record that is not applied yet; nullptr: no such.
  Entry* Find(Lsn lsn);

  // Returns false if `lsn` was never handed out, or is applied already.
  bool MarkApplied(Lsn lsn);

  void CommitUpTo(Lsn lsn);

  Lsn ordered() const { return ordered_; }
  Lsn committed() const { return committed_; }
  Lsn applied() const { return applied_; }                      // all records up to here are
  uint64_t state_digest() const { return digest_; }             // of all ordered records
  const std::deque<Record>& recent() const { return recent_; }  // the last applied ones, ascending
  std::deque<Entry>& pending() { return pending_; }

 private:
  std::deque<Entry> pending_;  // positions (applied_, ordered_], without holes
  std::deque<Record> recent_;
  Lsn ordered_;
  Lsn committed_;
  Lsn handed_out_;
  Lsn applied_;
  uint64_t digest_ = 0;
  std::string encoded_;  // the newest record; its memory is used again
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_PARTITION_LOG_H_
