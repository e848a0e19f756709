#include "common/placement/shard_memory_plan.h"

#include <algorithm>
#include <bit>

#include "common/data_plan/job_steps.h"
#include "common/protocol/limits.h"

namespace starling {

namespace {

// What a partition keeps per open item, apart from one bit per slice: a tree entry for a range of
// covered items after it, and one for items that only some slices cover.
constexpr uint64_t kOpenItemBytes = 128;
// What it keeps per slice: counts and positions, and its last updates.
constexpr uint64_t kSliceBytes = 256 + limits::kSliceUpdatesRemembered * sizeof(uint64_t);
// A partition keeps its state twice: as ordered, and as it took effect.
constexpr uint64_t kStates = 2;

// Slice-sized buffers for sums that wait for their siblings. Each member sends at most two ranges
// per level of the tree, and ranges are disjoint.
uint64_t SumBuffers(const JobSpec& spec) {
  const uint64_t leaves = spec.batch().micro_batches();
  const uint64_t ranges = 2 * spec.workers_max() * static_cast<uint64_t>(std::bit_width(leaves));
  return std::min(leaves, ranges) / 2 + 1;
}

bool PlansSums(const JobSpec& spec) {  // a guard may end in BSP
  return spec.policy().kind() == Policy::BSP || spec.policy().has_guard();
}

}  // namespace

int OptimizerSlots(const Optimizer& optimizer, const Slice& slice) {
  if (slice.kind != TRAINABLE) return 0;
  switch (optimizer.kind_case()) {
    case Optimizer::kSgd:
    case Optimizer::KIND_NOT_SET: return 0;
    case Optimizer::kMomentum:
    case Optimizer::kNesterov:
    case Optimizer::kAdagrad: return 1;
    case Optimizer::kAdam:
    case Optimizer::kAdamw:
    case Optimizer::kLamb: break;
  }
  return 2;
}

uint64_t PlannedPartitionBytes(const JobSpec& spec, uint64_t samples, const Layout& layout,
                               PartitionId partition) {
  uint64_t bytes = 0;
  for (const SliceId id : layout.partitions[partition.value]) {
    const Slice& slice = layout.slices[id.value];
    uint64_t buffers = 1;
    if (slice.kind != FROZEN) {
      buffers = 2 + static_cast<uint64_t>(OptimizerSlots(spec.optimizer(), slice));
      if (PlansSums(spec)) buffers += SumBuffers(spec);
    }
    if (spec.evaluate().every_epochs() > 0) ++buffers;
    bytes += buffers * slice.elements * sizeof(float);
  }
  const uint64_t slices = layout.partitions[partition.value].size();
  const uint64_t open = OpenItemsMax(spec, samples) * (kOpenItemBytes + slices / 8);
  return bytes + kStates * (open + slices * kSliceBytes);
}

uint64_t BspPartitionBytesMore(const JobSpec& spec, const Layout& layout, PartitionId partition) {
  if (PlansSums(spec)) return 0;
  uint64_t elements = 0;
  for (const SliceId id : layout.partitions[partition.value]) {
    const Slice& slice = layout.slices[id.value];
    if (slice.kind != FROZEN) elements += slice.elements;
  }
  return SumBuffers(spec) * elements * sizeof(float);
}

}  // namespace starling
