// What a shard tells its coordinator of its partitions, as changes (docs/protocol.md, section 5).
// Pure: no I/O, no clock.
//
// A change is told until a report that has it was taken, and all before it: reports may be lost,
// and come late or in another order. The first report to a coordinator says all: what that one
// knows begins anew with it.
#ifndef STARLING_COMMON_CONTROL_SHARD_REPORTS_H_
#define STARLING_COMMON_CONTROL_SHARD_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "common/protocol/limits.h"
#include "proto/coordinator.pb.h"

namespace starling {

// One thread at a time.
class ShardReports {
 public:
  // A report ends with the change that passes `bytes_max`; the next one goes on.
  explicit ShardReports(size_t bytes_max = limits::kControlChangesBytesMax)
      : bytes_max_(bytes_max) {}

  // The run is held from now on, though it may have no partition yet.
  void Hold(const Run& run);
  // Of a run that is held and not over; of others it says nothing any more.
  void Update(const PartitionStatus& status);
  // Nothing is left of the run but values that are only read.
  void End(const Run& run, uint64_t value_bytes);
  // The coordinator has ordered it, so it need not hear of it.
  void Drop(uint64_t job);
  void DropPartition(uint64_t job, uint32_t partition);

  // Another coordinator: it knows nothing.
  void TellAll();
  // Another incarnation: it has nothing.
  void Clear();

  // What was not taken yet, as much of it as fits. `sequence` grows.
  void Fill(uint64_t sequence, ShardReport& report);
  // Reports up to `sequence` were taken. True: the last one that was filled could not say all.
  bool Taken(uint64_t sequence);

  bool Holds(uint64_t job) const { return entries_.contains({job, kRun}); }
  size_t partitions() const { return entries_.size() - runs_; }

 private:
  using Key = std::pair<uint64_t, int64_t>;  // job, and partition or kRun
  static constexpr int64_t kRun = -1;

  struct Entry {
    uint64_t ticket = 0;   // its place among what was not taken; 0: it was
    uint64_t sent_in = 0;  // the first report that has it; 0: none yet
    HeldJob held;          // of kRun
    PartitionStatus status;
  };

  void Changed(const Key& key, Entry& entry);

  size_t bytes_max_;
  std::map<Key, Entry> entries_;
  size_t runs_ = 0;                  // entries of kRun
  std::map<uint64_t, Key> pending_;  // by ticket: what changed first goes first
  uint64_t last_ticket_ = 0;
  bool whole_ = true;
  uint64_t whole_sent_in_ = 0;
  bool more_ = false;
};

}  // namespace starling

#endif  // STARLING_COMMON_CONTROL_SHARD_REPORTS_H_
