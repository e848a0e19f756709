// A partition's configuration; constant during the job's run.
#ifndef STARLING_SERVER_SHARD_CORE_PARTITION_CONFIG_H_
#define STARLING_SERVER_SHARD_CORE_PARTITION_CONFIG_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/ids.h"
#include "common/protocol/limits.h"
#include "common/protocol/types.h"
#include "common/schedule/loss_scale.h"

namespace starling {

class JobDescription;  // proto/coordinator.proto
class Policy;          // proto/job.proto
struct Layout;         // common/placement/layout.h

struct PartitionConfig {
  struct SliceInfo {
    SliceId id;
    uint32_t elements = 0;
    bool updated = true;    // false: frozen, so never pushed or changed
    double rate_scale = 1;  // multiplies the schedule's rate
    double decay = 0;       // weight decay
    bool clipped = false;   // part of the whole gradient's norm, and scaled by it
    // BSP: applied only after the job has decided about the step. True for all clipped slices.
    bool decided = false;
    int slots = 0;  // of its update rule
  };

  // The state of the whole job at the step at which a run begins that goes on from a checkpoint, or
  // takes values from one (docs/decisions/0013-checkpoints.md, part 4).
  struct Start {
    uint64_t step = 0;     // all below it is applied, nothing else
    uint64_t skipped = 0;  // of these steps
    // By an earlier job, on each slice: added to Adam's t.
    uint64_t updates_before = 0;
    PolicyAt policy;  // in force from `step` on
    LossScale::State loss_scale;
    std::optional<uint32_t> copy;  // the epoch of the copy for evaluation, if there is one
  };

  RunId run;
  PartitionId partition;
  ShardId self;                   // the shard that hosts it
  std::vector<SliceInfo> slices;  // ascending

  uint64_t samples = 0;                                   // n
  uint32_t batch = 0;                                     // B
  uint32_t micro_batches = 0;                             // M
  uint64_t steps = 0;                                     // of the whole job
  uint64_t open_items_max = limits::kLeasesPerWorkerMax;  // OpenItemsMax
  ConsistencyPolicy policy;                               // the first one
  std::optional<Start> start;                             // unset: step 0, with first values
  double clip_norm = 0;  // of the step's whole gradient, BSP; 0: none
  // Fp16: a gradient that overflowed is skipped (docs/protocol.md, section 10).
  bool scales_loss = false;
  std::vector<PartitionId> reporters;  // partitions with `decided` slices, ascending
  uint32_t backup_workers = 0;         // they are told who is late (docs/decisions/0014)

  std::function<float(int64_t step)> rate;           // the schedule; pure
  std::function<bool(uint32_t epoch)> evaluates_at;  // pure
  // "dense1.weight[17]", for messages about bad elements; pure.
  std::function<std::string(SliceId, uint32_t element)> name_of_element;

  uint64_t FullSteps() const { return (samples + batch - 1) / batch; }  // S
  uint32_t Epochs() const { return static_cast<uint32_t>((steps + FullSteps() - 1) / FullSteps()); }
  uint64_t StepsIn(uint32_t epoch) const;  // 0 beyond the last epoch
  // `work` lies in one step: that step's item in its epoch, the item's whole range, and its number
  // in the job.
  uint64_t ItemOf(const WorkRange& work) const { return work.first / micro_batches; }
  WorkRange ItemRange(const WorkRange& work) const {
    return {work.purpose, work.epoch, ItemOf(work) * micro_batches, micro_batches};
  }
  int64_t JobStep(const WorkRange& work) const {
    return static_cast<int64_t>(work.epoch * FullSteps() + ItemOf(work));
  }
  // Whether the values are copied at the epoch's cut. After the last cut the values do not change,
  // so they need no copy.
  bool NeedsCopy(uint32_t epoch) const { return evaluates_at(epoch) && epoch + 1 < Epochs(); }
  bool KeepsLossScale() const;  // whether this partition keeps the job's loss scale
  bool Decides() const { return partition == kDecidingPartition && !reporters.empty(); }
  // Samples of the micro-batches of `work`.
  uint64_t SamplesIn(const WorkRange& work) const;
};

// kInvalidArgument: a kind that does not exist.
absl::StatusOr<ConsistencyPolicy> PolicyFromProto(const Policy& policy);

// The policy under which the run begins: the job file's, or that of the checkpoint that it
// continues.
const Policy& FirstPolicy(const JobDescription& job);

// The configuration of `partition` of the job with this layout, hosted by `self`. kInvalidArgument:
// a coordinator would not send this description; the message names the field.
absl::StatusOr<PartitionConfig> MakePartitionConfig(const JobDescription& job, const Layout& layout,
                                                    PartitionId partition, ShardId self);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_PARTITION_CONFIG_H_
