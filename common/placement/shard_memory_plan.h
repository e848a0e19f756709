// The shard memory that a job's part needs: checked by the coordinator before the job starts, and
// by the shard when its orders arrive.
#ifndef STARLING_COMMON_PLACEMENT_SHARD_MEMORY_PLAN_H_
#define STARLING_COMMON_PLACEMENT_SHARD_MEMORY_PLAN_H_

#include <cstdint>

#include "common/placement/layout.h"
#include "proto/job.pb.h"

namespace starling {

// fp32 values that the optimizer keeps per element of the slice: 0, 1 or 2.
int OptimizerSlots(const Optimizer& optimizer, const Slice& slice);

// The most bytes that a partition takes for tensors and for the coverage of `samples` training
// samples, under the policy that the job starts with, and under BSP if a guard may switch to it.
uint64_t PlannedPartitionBytes(const JobSpec& spec, uint64_t samples, const Layout& layout,
                               PartitionId partition);

// What BSP needs beyond that, for sums that wait for their siblings. 0 if already planned.
uint64_t BspPartitionBytesMore(const JobSpec& spec, const Layout& layout, PartitionId partition);

}  // namespace starling

#endif  // STARLING_COMMON_PLACEMENT_SHARD_MEMORY_PLAN_H_
