// Sees what a partition is told and decides, and what its host does to the values: the simulator's
// checkers know so what really happened.
#ifndef STARLING_SERVER_SHARD_HOST_PARTITION_OBSERVER_H_
#define STARLING_SERVER_SHARD_HOST_PARTITION_OBSERVER_H_

#include <array>

#include "absl/types/span.h"
#include "common/protocol/record.h"
#include "server/shard/apply/payload.h"
#include "server/shard/core/partition.h"

namespace starling {

// What the host has of a slice. Valid during the call that brings it.
struct HostedSlice {
  SliceId id;
  absl::Span<const float> newest;
  absl::Span<const float> before;  // the version before; empty where one version is kept
  std::array<absl::Span<const float>, 2> slots;  // empty: the rule lacks it
};

// Called on the threads of the partitions' owners.
class PartitionObserver {
 public:
  virtual ~PartitionObserver() = default;
  // The core has stepped; `actions` are about to be carried out.
  virtual void OnStep(const Partition& core, const PartitionEvent& event,
                      const PartitionActions& actions) = 0;
  // The record of an ApplyNow is carried out with these bytes, which are valid during the call:
  // `slice` is as it leaves it.
  virtual void OnCarriedOut(const Partition& core, const Record& record, Payload payload,
                            const HostedSlice& slice) = 0;
  // The record has taken effect: core.applied() is as it leaves it. Within the core's step, ahead
  // of OnStep.
  virtual void OnEffect(const Partition& core, const Record& record) = 0;
  // The job is over, or the partition is dropped, or one after the other. `slices` ascend.
  virtual void OnGone(const Partition& core, absl::Span<const HostedSlice> slices) = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_PARTITION_OBSERVER_H_
