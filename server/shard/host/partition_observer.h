// Sees what a partition is told and decides: the simulator's checkers know so what really happened.
#ifndef STARLING_SERVER_SHARD_HOST_PARTITION_OBSERVER_H_
#define STARLING_SERVER_SHARD_HOST_PARTITION_OBSERVER_H_

#include "server/shard/core/partition.h"

namespace starling {

// Called on the threads of the partitions' owners.
class PartitionObserver {
 public:
  virtual ~PartitionObserver() = default;
  // The core has stepped; `actions` are about to be carried out.
  virtual void OnStep(const Partition& core, const PartitionEvent& event,
                      const PartitionActions& actions) = 0;
  // The partition is dropped, or its job is over.
  virtual void OnGone(const Partition& core) = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_PARTITION_OBSERVER_H_
