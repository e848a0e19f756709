// The records of a partition that have not taken effect, each with its waiters. A record is
// ordered, then committed (the backup has it, or there is none), then carried out, and takes effect
// when all before it have.
#ifndef STARLING_SERVER_SHARD_CORE_PARTITION_LOG_H_
#define STARLING_SERVER_SHARD_CORE_PARTITION_LOG_H_

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "common/protocol/frame.h"
#include "common/protocol/record.h"
#include "server/shard/core/events.h"

namespace starling {

// Not thread-safe.
class PartitionLog {
 public:
  // A request that is owed an answer.
  struct Waiter {
    ConnectionId connection;
    FrameHeader request;
  };
  using Waiters = absl::InlinedVector<Waiter, 1>;

  struct Entry {
    Record record;
    uint64_t digest = 0;  // of the log with it
    BufferId payload;     // kApply only
    Waiters waiters;
    bool done = false;  // carried out
  };

  // The record has the next position. What is returned is valid until the next call.
  const Entry& Append(Entry entry);

  void CommitUpTo(Lsn lsn);

  // The oldest entry that is committed and was not handed out yet; nullptr: none. Updates are
  // handed out ahead of each other's end; anything else waits until all before it took effect, and
  // updates behind it wait for it. Stays valid until it takes effect.
  Entry* HandOut();

  // The entry of a record that has not taken effect; nullptr: no such.
  Entry* Find(Lsn lsn);

  // It is carried out. Returns false if `lsn` was never handed out, or is done already.
  bool MarkDone(Lsn lsn);

  // The oldest entry, which takes effect now; nullopt: it is not done, or there is none.
  std::optional<Entry> TakeDone();

  // Forgets what is ordered and neither committed nor handed out: it never happened.
  std::deque<Entry> DropUncommitted();

  Lsn ordered() const { return ordered_; }
  Lsn applied() const { return applied_; }  // all records up to here took effect
  std::deque<Entry>& pending() { return pending_; }

 private:
  std::deque<Entry> pending_;  // positions (applied_, ordered_], without holes
  Lsn ordered_;
  Lsn committed_;
  Lsn handed_out_;
  Lsn applied_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_PARTITION_LOG_H_
