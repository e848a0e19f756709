// Observes a partition's events, decisions and changes of values, so that the simulator's checkers
// know what really happened.
#ifndef STARLING_SERVER_SHARD_HOST_PARTITION_OBSERVER_H_
#define STARLING_SERVER_SHARD_HOST_PARTITION_OBSERVER_H_

#include <array>

#include "absl/types/span.h"
#include "common/protocol/record.h"
#include "server/shard/apply/payload.h"
#include "server/shard/core/partition.h"

namespace starling {

// A slice's memory in the host. Valid during the call.
struct HostedSlice {
  SliceId id;
  absl::Span<const float> newest;
  absl::Span<const float> before;                // the previous version; empty if only one is kept
  std::array<absl::Span<const float>, 2> slots;  // empty if the rule has no such slot
  absl::Span<const float> cut;                   // the copy for evaluation; empty: there is none
};

// Called on the threads of the partitions' owners.
class PartitionObserver {
 public:
  virtual ~PartitionObserver() = default;
  // The core has stepped; `actions` are about to be carried out.
  virtual void OnStep(const Partition& core, const PartitionEvent& event,
                      const PartitionActions& actions) = 0;
  // The record of an ApplyNow was carried out with these bytes, which are valid during the call.
  // `slice` is the result.
  virtual void OnCarriedOut(const Partition& core, const Record& record, Payload payload,
                            const HostedSlice& slice) = 0;
  // The record has taken effect and core.applied() includes it. Called within the core's step,
  // before OnStep.
  virtual void OnEffect(const Partition& core, const Record& record) = 0;
  // The job is over or the partition is dropped; may be called for each. `slices` ascend; none: not
  // all of a snapshot was installed.
  virtual void OnGone(const Partition& core, absl::Span<const HostedSlice> slices) = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_PARTITION_OBSERVER_H_
