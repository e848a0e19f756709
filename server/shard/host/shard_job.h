// What a shard knows of a job whose partitions it hosts. Constant once made, but for what is
// counted.
#ifndef STARLING_SERVER_SHARD_HOST_SHARD_JOB_H_
#define STARLING_SERVER_SHARD_HOST_SHARD_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/placement/layout.h"
#include "proto/coordinator.pb.h"
#include "server/shard/apply/init.h"
#include "server/shard/apply/update.h"
#include "server/shard/host/shard_metrics.h"

namespace starling {

struct ShardJobPlan {
  JobDescription description;
  RunId run;
  Layout layout;
  std::vector<UpdateRule> rules;  // by slice; frozen ones have kSgd, never used
  // Writes a slice's first values to `out` (FirstValues::Make). Thread-safe.
  std::function<absl::Status(const Slice& slice, float* out)> first_values;
  const std::shared_ptr<ShardJobMetrics> metrics = std::make_shared<ShardJobMetrics>();

  bool bsp() const { return description.spec().policy().kind() == Policy::BSP; }

  // Memory that the partition itself needs at most: values (BSP: two versions; others: one, and one
  // more while it is being sent), optimizer slots, the copy for evaluation, and in BSP the sums
  // that wait for their siblings, and what is known of steps that are open. Values of older
  // versions that slower readers have not read yet come on top: see
  // ShardMemory::StreamQueueBytesMax.
  uint64_t PlannedBytes(PartitionId partition) const;

  // What it would need beyond that under BSP: the sums. 0: they are planned.
  uint64_t BspBytesMore(PartitionId partition) const;
};

// kFailedPrecondition: this build cuts the model differently than the coordinator's.
// kInvalidArgument: a field of the description is impossible.
absl::StatusOr<std::shared_ptr<const ShardJobPlan>> MakeShardJobPlan(const JobDescription& job);
using MakePlan =
    std::function<absl::StatusOr<std::shared_ptr<const ShardJobPlan>>(const JobDescription& job)>;

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_JOB_H_
