// What a partition of a job needs to know; constant for the life of its run.
#ifndef STARLING_SERVER_SHARD_CORE_PARTITION_CONFIG_H_
#define STARLING_SERVER_SHARD_CORE_PARTITION_CONFIG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/ids.h"
#include "common/protocol/limits.h"
#include "common/protocol/types.h"

namespace starling {

class JobDescription;  // proto/coordinator.proto
class Policy;          // proto/job.proto
struct Layout;         // common/placement/layout.h

// Of a job, the one that decides about whole steps.
inline constexpr PartitionId kDecidingPartition(0);

struct PartitionConfig {
  struct SliceInfo {
    SliceId id;
    uint32_t elements = 0;
    bool updated = true;    // false: frozen; never pushed, always as it was made
    double rate_scale = 1;  // multiplies the schedule's rate
    double decay = 0;       // weight decay
    bool clipped = false;   // counts for the norm of the whole gradient, and is scaled with it
    // BSP: applied once the job has decided about the step; all clipped ones are.
    bool decided = false;
  };

  RunId run;
  PartitionId partition;
  ShardId self;                   // who hosts it
  std::vector<SliceInfo> slices;  // ascending

  uint64_t samples = 0;                                   // n
  uint32_t batch = 0;                                     // B
  uint32_t micro_batches = 0;                             // M
  uint64_t steps = 0;                                     // of the whole job
  uint64_t open_items_max = limits::kLeasesPerWorkerMax;  // OpenItemsMax
  ConsistencyPolicy policy;
  double clip_norm = 0;  // of the step's whole gradient, BSP; 0: none
  // Fp16: a gradient that overflowed is skipped (docs/protocol.md, section 10).
  bool scales_loss = false;
  std::vector<PartitionId> reporters;  // partitions with slices that are decided about; ascending

  std::function<float(int64_t step)> rate;           // the schedule; pure
  std::function<bool(uint32_t epoch)> evaluates_at;  // pure
  // "dense1.weight[17]", for messages about bad elements; pure.
  std::function<std::string(SliceId, uint32_t element)> name_of_element;

  uint64_t FullSteps() const { return (samples + batch - 1) / batch; }  // S
  uint32_t Epochs() const { return static_cast<uint32_t>((steps + FullSteps() - 1) / FullSteps()); }
  uint64_t StepsIn(uint32_t epoch) const;  // 0 beyond the last epoch
  // `work` lies in one step: which of its epoch, all of it, and which of the job.
  uint64_t ItemOf(const WorkRange& work) const { return work.first / micro_batches; }
  WorkRange ItemRange(const WorkRange& work) const {
    return {work.purpose, work.epoch, ItemOf(work) * micro_batches, micro_batches};
  }
  int64_t JobStep(const WorkRange& work) const {
    return static_cast<int64_t>(work.epoch * FullSteps() + ItemOf(work));
  }
  // Whether the values are copied at the epoch's cut. After the last one they are the copy.
  bool NeedsCopy(uint32_t epoch) const { return evaluates_at(epoch) && epoch + 1 < Epochs(); }
  bool KeepsLossScale() const;  // of the job
  bool Decides() const { return partition == kDecidingPartition && !reporters.empty(); }
  // Samples of the micro-batches of `work`.
  uint64_t SamplesIn(const WorkRange& work) const;
};

// kInvalidArgument: a kind that does not exist.
absl::StatusOr<ConsistencyPolicy> PolicyFromProto(const Policy& policy);

// Of partition `partition` of the job as described, laid out as `layout`, hosted by `self`.
// kInvalidArgument: the description is not one that the coordinator hands out; names the field.
absl::StatusOr<PartitionConfig> MakePartitionConfig(const JobDescription& job, const Layout& layout,
                                                    PartitionId partition, ShardId self);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_PARTITION_CONFIG_H_
