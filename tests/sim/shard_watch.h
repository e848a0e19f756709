// Tells the checkers what partitions hear and decide, and the values that they send.
#ifndef STARLING_TESTS_SIM_SHARD_WATCH_H_
#define STARLING_TESTS_SIM_SHARD_WATCH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/shard/host/partition_observer.h"
#include "tests/sim/checker.h"
#include "tests/sim/repeater.h"
#include "tests/sim/sim_streams.h"
#include "tests/sim/world.h"

namespace starling::sim {

class Cluster;

class ShardWatch final : public PartitionObserver, public StreamObserver {
 public:
  explicit ShardWatch(Cluster* cluster) : cluster_(cluster) {}

  void OnStep(const Partition& core, const PartitionEvent& event,
              const PartitionActions& actions) override;
  void OnCarriedOut(const Partition& core, const Record& record, Payload payload,
                    const HostedSlice& slice) override;
  void OnEffect(const Partition& core, const Record& record) override;
  void OnGone(const Partition& core, absl::Span<const HostedSlice> slices) override;
  ValueTruth OnValueSent(const Process& by, const FrameHeader& header,
                         absl::Span<const uint8_t> bytes) override;

  // Its process has died. Its memory is freed later.
  void OnDied(const Partition& core);

  // The partitions hosted now.
  std::string ToString() const;

 private:
  struct Watched {
    uint64_t number = 0;  // unique
    JobTruth* truth = nullptr;
    // None: it began with a snapshot, or from a checkpoint.
    std::unique_ptr<Repeater> repeater;
    ViewNumber view;
    ViewNumber since;                        // it leads since then; 0: it does not
    bool learns = false;                     // it had nothing when it was last seen
    uint64_t wholes = 0;                     // its counter
    std::map<BufferId, FrameHeader> pushes;  // received and not released
    std::map<BufferId, std::weak_ptr<std::vector<uint8_t>>> shared;  // of these, their memory
    std::map<BufferId, SliceId> measured;  // sums whose norm is being computed
    std::map<Lsn, Record> applying;
  };
  // The log of a partition: there is one, whichever copies have it. What a copy has at a position
  // is what the first one had there.
  struct LogTruth {
    struct Position {
      uint64_t digest = 0;  // of the log up to here
      uint64_t state = 0;   // of the partition's, as bytes
      uint64_t values = 0;  // of all that is kept of the slice that the record updates, behind it
      uint64_t ended = 0;   // of all slices of a copy that went here
      bool applied = false;
    };
    std::map<Lsn, Position> positions;
    std::set<const Partition*> copies;                       // hosted now
    std::map<std::pair<Lsn, uint64_t>, FrameHeader> pushes;  // of records by their digest
    ViewNumber view;                                         // the newest that a copy leads
  };
  // A pull: its partition, its puller, its request.
  using PullKey = std::tuple<RunId, PartitionId, Incarnation, uint64_t, SliceId>;

  static PullKey KeyOf(const FrameHeader& value);
  LogTruth& LogOf(const Partition& core);
  void OnRecordApplied(const Partition& core, Watched& watched, const Record& record);
  // What copies have at one position. `known`: what the first one had there, or 0.
  void Compare(const Partition& core, const char* what, Lsn at, uint64_t has, uint64_t& known);
  void CompareState(const Partition& core);
  void CheckHeld(const Partition& core, Lsn lsn, const char* what);
  static void NotePush(LogTruth& log, const Partition& core, const Watched& watched,
                       const Record& record, BufferId payload);
  Watched& WatchedOf(const Partition& core);
  void OnVerified(Watched& watched, BufferId payload);
  void On(const Partition& core, Watched& watched, const PartitionEvent& event);
  void On(const Partition& core, Watched& watched, const PartitionAction& action);
  void Count(const PartitionCounters& counters);

  Cluster* const cluster_;
  uint64_t last_number_ = 0;
  std::map<const Partition*, Watched> watched_;
  std::map<std::pair<RunId, PartitionId>, LogTruth> logs_;
  std::map<PullKey, ValueTruth> values_;  // answered, and not sent yet
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_SHARD_WATCH_H_
