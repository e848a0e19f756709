// A partition's records that have not taken effect, each with its waiters. A record is ordered,
// then committed (both copies have it, or there is only one copy), then carried out. It takes
// effect once all records before it have.
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
    uint64_t digest = 0;  // of the log up to and including it
    BufferId payload;     // kApply only
    Waiters waiters;
    bool done = false;  // carried out
  };

  // All records up to `at` have taken effect.
  explicit PartitionLog(Lsn at = Lsn())
      : ordered_(at), committed_(at), handed_out_(at), applied_(at) {}

  // The record must have the next position. The result is valid until the next call.
  const Entry& Append(Entry entry);

  void CommitUpTo(Lsn lsn);

  // The oldest committed entry that was not handed out yet, if it may be; null: none. Several
  // updates may be handed out before the first one is done. Any other record waits until all
  // records before it have taken effect, and updates behind it wait for it. The pointer is valid
  // until the entry takes effect.
  Entry* Next();
  // Hands out what Next() returned.
  void HandOut(const Entry& next) { handed_out_ = next.record.lsn; }

  // The entry of a record that has not taken effect; null: no such record.
  Entry* Find(Lsn lsn);

  // Marks the record as carried out. False: `lsn` was not handed out, or is already done.
  bool MarkDone(Lsn lsn);

  // Removes the oldest entry, which takes effect now; nullopt: it is not done, or there is none.
  std::optional<Entry> TakeDone();

  Lsn ordered() const { return ordered_; }
  Lsn committed() const { return committed_; }
  Lsn applied() const { return applied_; }  // all records up to here have taken effect
  bool quiet() const { return handed_out_ == applied_; }  // so have all that were handed out
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
