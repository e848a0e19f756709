// What the partitions of one job share on a shard. Constant after construction, except for
// counters.
#ifndef STARLING_SERVER_SHARD_HOST_SHARD_JOB_H_
#define STARLING_SERVER_SHARD_HOST_SHARD_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/disk.h"
#include "common/placement/layout.h"
#include "proto/coordinator.pb.h"
#include "server/shard/apply/update.h"
#include "server/shard/core/partition_config.h"
#include "server/shard/host/shard_metrics.h"

namespace starling {

struct ShardJobPlan {
  JobDescription description;
  RunId run;
  Layout layout;
  std::vector<UpdateRule> rules;  // by slice; frozen ones have kSgd, never used
  // Write a slice's tensors at the run's first step to `out`. Thread-safe. They may block while
  // they read a file. They come from the job's seed (FirstValues) or from a checkpoint
  // (CheckpointValues).
  std::function<absl::Status(const Slice& slice, float* out)> first_values;
  std::function<absl::Status(const Slice& slice, int slot, float* out)> first_slots;  // empty: none
  // Empty: where the run begins with a copy for evaluation, the values themselves are the copy.
  std::function<absl::Status(const Slice& slice, float* out)> first_copy;
  const std::shared_ptr<ShardJobMetrics> metrics = std::make_shared<ShardJobMetrics>();

  uint64_t first_step() const { return description.restore().step(); }
  bool bsp() const { return FirstPolicy(description).kind() == Policy::BSP; }  // at the first step

  // The maximum memory of the partition itself, in bytes: values (two versions in BSP; otherwise
  // one, and another while it is being sent), optimizer slots, the copy for evaluation, sums that
  // wait for siblings in BSP, and the state of open steps. Old versions that slow readers have not
  // read yet come on top: see ShardMemory::StreamQueueBytesMax.
  uint64_t PlannedBytes(PartitionId partition) const;

  // Additional memory under BSP, in bytes, for sums. 0: it is part of PlannedBytes.
  uint64_t BspBytesMore(PartitionId partition) const;
};

// `disk`: where checkpoints are; null: this shard has none. Does not use it yet.
// kFailedPrecondition: this build partitions the model differently than the coordinator's, or the
// job begins with a checkpoint and there is no disk. kInvalidArgument: a field of the description
// is invalid.
absl::StatusOr<std::shared_ptr<const ShardJobPlan>> MakeShardJobPlan(
    const JobDescription& job, std::shared_ptr<CheckpointDisk> disk = nullptr);
using MakePlan = std::function<absl::StatusOr<std::shared_ptr<const ShardJobPlan>>(
    const JobDescription& job, std::shared_ptr<CheckpointDisk> disk)>;

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_JOB_H_
