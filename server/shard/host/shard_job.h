// What the partitions of one job share on a shard. Constant after construction, except for
// counters.
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
  // Writes a slice's initial values to `out` (FirstValues::Make). Thread-safe.
  std::function<absl::Status(const Slice& slice, float* out)> first_values;
  const std::shared_ptr<ShardJobMetrics> metrics = std::make_shared<ShardJobMetrics>();

  bool bsp() const { return description.spec().policy().kind() == Policy::BSP; }

  // The maximum memory of the partition itself, in bytes: values (two versions in BSP; otherwise
  // one, and another while it is being sent), optimizer slots, the copy for evaluation, sums that
  // wait for siblings in BSP, and the state of open steps. Old versions that slow readers have not
  // read yet come on top: see ShardMemory::StreamQueueBytesMax.
  uint64_t PlannedBytes(PartitionId partition) const;

  // Additional memory under BSP, in bytes, for sums. 0: it is part of PlannedBytes.
  uint64_t BspBytesMore(PartitionId partition) const;
};

// kFailedPrecondition: this build partitions the model differently than the coordinator's.
// kInvalidArgument: a field of the description is invalid.
absl::StatusOr<std::shared_ptr<const ShardJobPlan>> MakeShardJobPlan(const JobDescription& job);
using MakePlan =
    std::function<absl::StatusOr<std::shared_ptr<const ShardJobPlan>>(const JobDescription& job)>;

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_JOB_H_
