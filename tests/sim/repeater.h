// A second copy of a partition's state and values, fed with nothing but the first values, the
// encoded records, and the bytes that they apply, as a backup's or a log reader's copy is. It must
// be equal to the partition's: the log by its digest at every position; the state byte for byte at
// every 10th and at the end; the slice of every update byte for byte at once, and all slices at the
// end.
#ifndef STARLING_TESTS_SIM_REPEATER_H_
#define STARLING_TESTS_SIM_REPEATER_H_

#include <string>

#include "absl/types/span.h"
#include "server/shard/apply/testing/repeated_values.h"
#include "server/shard/core/partition_state.h"
#include "server/shard/host/partition_observer.h"
#include "tests/sim/checker.h"
#include "tests/sim/world.h"

namespace starling::sim {

// After its first violation it compares nothing more.
class Repeater {
 public:
  // The partition's log is empty. `world` outlives the repeater.
  Repeater(World* world, const PartitionConfig& config, const JobTruth& truth);
  Repeater(const Repeater&) = delete;
  Repeater& operator=(const Repeater&) = delete;

  // As in PartitionObserver.
  void OnCarriedOut(const Record& record, Payload payload, const HostedSlice& slice);
  void OnEffect(const Partition& partition, const Record& record);
  void OnGone(const Partition& partition, absl::Span<const HostedSlice> slices);

 private:
  void CompareState(const Partition& partition);
  void CompareSlice(const HostedSlice& hosted);
  void Violate(absl::string_view what);

  World* const world_;
  const PartitionConfig config_;
  PartitionState state_;
  RepeatedValues values_;
  Lsn carried_out_;  // the last update that was
  bool failed_ = false;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_REPEATER_H_
