// What a shard reports to its coordinator about its partitions, as changes (docs/protocol.md,
// section 5). Pure: no I/O, no clock.
//
// A change is repeated until the coordinator has taken a report that contains it, and all reports
// before that: reports may be lost, late or reordered. The first report to a coordinator is
// complete, and replaces what that coordinator knew.
#ifndef STARLING_COMMON_CONTROL_SHARD_REPORTS_H_
#define STARLING_COMMON_CONTROL_SHARD_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/time/time.h"
#include "common/protocol/limits.h"
#include "proto/coordinator.pb.h"

namespace starling {

// Not thread-safe.
class ShardReports {
 public:
  // A report ends with the change that passes `bytes_max`; the next report continues.
  explicit ShardReports(size_t bytes_max = limits::kControlChangesBytesMax)
      : bytes_max_(bytes_max) {}

  // The run is held from now on, even before it has a partition, and nothing of an earlier era of
  // the job. Ignored if a later one is held.
  void Hold(const Run& run);
  // Ignored unless this very run is held and not over, as are others. `at`: now.
  void Update(const PartitionStatus& status, absl::Time at = absl::InfinitePast());
  // The shard's part of a checkpoint; without a number: none.
  void Checkpoint(const Run& run, const CheckpointPart& part);
  // The run is over; only values for readers are left. Ignored if a later era is held.
  void End(const HeldJob& ended);
  // Not reported: the coordinator ordered the drop.
  void Drop(uint64_t job);
  void DropPartition(uint64_t job, uint32_t partition);

  // For a new coordinator, which knows nothing.
  void TellAll();
  // For a new incarnation, which holds nothing.
  void Clear();

  // Adds as many pending changes as fit. `sequence` grows.
  void Fill(uint64_t sequence, ShardReport& report);
  // Reports up to `sequence` were taken. True: the last report had no room for all changes.
  bool Taken(uint64_t sequence);

  // Partitions of jobs that are not over of which this copy may be the only one: none of their
  // records has taken effect since then, for which both shards must live, or this copy leads and no
  // coordinator has taken that its backup is whole.
  size_t OnlyHere(absl::Time since) const;
  // Jobs that are over and have values here.
  size_t Ended() const;

  bool Holds(uint64_t job) const { return entries_.contains({job, kRun}); }
  size_t partitions() const { return entries_.size() - runs_; }

 private:
  using Key = std::pair<uint64_t, int64_t>;  // job, and partition or kRun
  static constexpr int64_t kRun = -1;

  struct Entry {
    uint64_t ticket = 0;   // position in pending_; 0: not pending
    uint64_t sent_in = 0;  // the first report that contains it; 0: none yet
    HeldJob held;          // for kRun
    PartitionStatus status;
    absl::Time moved = absl::InfinitePast();  // when its last record took effect
    uint64_t whole_sent_in = 0;  // the first report that says so of the backup in this view
    bool whole_taken = false;
  };

  void Changed(const Key& key, Entry& entry);
  Entry* FindLive(const Run& run);  // null: this run is not held, or over

  size_t bytes_max_;
  std::map<Key, Entry> entries_;
  size_t runs_ = 0;                  // entries with kRun
  std::map<uint64_t, Key> pending_;  // by ticket: oldest change first
  uint64_t last_ticket_ = 0;
  bool whole_ = true;
  uint64_t whole_sent_in_ = 0;
  bool more_ = false;
};

}  // namespace starling

#endif  // STARLING_COMMON_CONTROL_SHARD_REPORTS_H_
