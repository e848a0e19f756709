#include "server/shard/service/shard_job.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/data_plan/job_steps.h"

namespace starling {

namespace {

// What a partition keeps of an item that is open, without a bit for each slice: an entry of a tree for a
// range of covered items behind it, and one for those that only some slices cover.
constexpr uint64_t kOpenItemBytes = 128;

// Buffers of a slice's size for sums that wait for their siblings. Each member sends at most two ranges per
// level of the tree, and ranges are disjoint.
uint64_t SumBuffers(const JobSpec& spec) {
  const uint64_t leaves = spec.batch().micro_batches();
  const uint64_t ranges = 2 * spec.workers_max() * static_cast<uint64_t>(std::bit_width(leaves));
  return std::min(leaves, ranges) / 2 + 1;
}

bool PlansSums(const JobSpec& spec) {  // a guard ends in BSP
  return spec.policy().kind() == Policy::BSP || spec.policy().has_guard();
}

}  // namespace

uint64_t ShardJobPlan::PlannedBytes(PartitionId partition) const {
  const JobSpec& spec = description.spec();
  uint64_t bytes = 0;
  for (const SliceId id : layout.partitions[partition.value]) {
    const Slice& slice = layout.slices[id.value];
    uint64_t buffers = 1;
    if (slice.kind != FROZEN) {
      buffers = 2 + static_cast<uint64_t>(rules[id.value].slots());
      if (PlansSums(spec)) buffers += SumBuffers(spec);
    }
    if (spec.evaluate().every_epochs() > 0) ++buffers;
    bytes += buffers * slice.elements * sizeof(float);
  }
  const uint64_t slices = layout.partitions[partition.value].size();
  return bytes + OpenItemsMax(spec, description.train_samples()) * (kOpenItemBytes + slices / 8);
}

uint64_t ShardJobPlan::BspBytesMore(PartitionId partition) const {
  const JobSpec& spec = description.spec();
  if (PlansSums(spec)) return 0;
  uint64_t elements = 0;
  for (const SliceId id : layout.partitions[partition.value]) {
    const Slice& slice = layout.slices[id.value];
    if (slice.kind != FROZEN) elements += slice.elements;
  }
  return SumBuffers(spec) * elements * sizeof(float);
}

absl::StatusOr<std::shared_ptr<const ShardJobPlan>> MakeShardJobPlan(const JobDescription& job) {
  auto plan = std::make_shared<ShardJobPlan>();
  plan->description = job;
  plan->run = {JobUid(job.run().job_uid()), job.run().era()};
  STARLING_ASSIGN_OR_RETURN(plan->layout, MakeLayout(job.spec()));
  if (plan->layout.digest != job.layout_digest() ||
      plan->layout.partitions.size() != job.partitions()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this shard cuts the model of job ", job.spec().name(), " into ",
        plan->layout.partitions.size(), " partitions with layout digest ", plan->layout.digest,
        ", the coordinator into ", job.partitions(), " with ", job.layout_digest(),
        ": run the same release on both"));
  }
  for (const Slice& slice : plan->layout.slices) {
    UpdateRule rule;
    if (slice.kind != FROZEN) {
      STARLING_ASSIGN_OR_RETURN(rule, MakeUpdateRule(job.spec(), slice));
    }
    plan->rules.push_back(rule);
  }
  const JobSpec& spec = plan->description.spec();
  plan->first_values = std::make_unique<FirstValues>(spec.seed(), spec.model());
  return std::shared_ptr<const ShardJobPlan>(std::move(plan));
}

}  // namespace starling
