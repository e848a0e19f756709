// What a job's part takes of a shard's memory: the coordinator asks before a job starts, the shard
// when it comes.
#ifndef STARLING_COMMON_PLACEMENT_SHARD_MEMORY_PLAN_H_
#define STARLING_COMMON_PLACEMENT_SHARD_MEMORY_PLAN_H_

#include <cstdint>

#include "common/placement/layout.h"
#include "proto/job.pb.h"

namespace starling {

// fp32 values that the optimizer keeps per element of the slice: 0, 1 or 2.
int OptimizerSlots(const Optimizer& optimizer, const Slice& slice);

// Bytes of tensors, and of the coverage of `samples` in training, that a partition takes at most,
// planned for the policy that the job begins with, and for BSP where a guard may choose it.
uint64_t PlannedPartitionBytes(const JobSpec& spec, uint64_t samples, const Layout& layout,
                               PartitionId partition);

// What it takes beyond that in BSP: for sums that wait for their siblings. 0 where that is planned.
uint64_t BspPartitionBytesMore(const JobSpec& spec, const Layout& layout, PartitionId partition);

}  // namespace starling

#endif  // STARLING_COMMON_PLACEMENT_SHARD_MEMORY_PLAN_H_
