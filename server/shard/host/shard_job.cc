#include "server/shard/host/shard_job.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/placement/shard_memory_plan.h"

namespace starling {

uint64_t ShardJobPlan::PlannedBytes(PartitionId partition) const {
  return PlannedPartitionBytes(description.spec(), description.train_samples(), layout, partition);
}

uint64_t ShardJobPlan::BspBytesMore(PartitionId partition) const {
  return BspPartitionBytesMore(description.spec(), layout, partition);
}

absl::StatusOr<std::shared_ptr<const ShardJobPlan>> MakeShardJobPlan(const JobDescription& job) {
  auto plan = std::make_shared<ShardJobPlan>();
  plan->description = job;
  plan->run = {JobUid(job.run().job_uid()), job.run().era()};
  STARLING_ASSIGN_OR_RETURN(plan->layout, MakeLayout(job.spec()));
  if (plan->layout.digest != job.layout_digest() ||
      plan->layout.partitions.size() != job.partitions()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this shard divides the model of job ", job.spec().name(), " into ",
                     plan->layout.partitions.size(), " partitions with layout digest ",
                     plan->layout.digest, ", the coordinator into ", job.partitions(), " with ",
                     job.layout_digest(), ": run the same release on both"));
  }
  for (const Slice& slice : plan->layout.slices) {
    UpdateRule rule;
    if (slice.kind != FROZEN) {
      STARLING_ASSIGN_OR_RETURN(rule, MakeUpdateRule(job.spec(), slice));
    }
    plan->rules.push_back(rule);
  }
  const JobSpec& spec = plan->description.spec();
  // `values` refers to the plan's own description.
  const auto values = std::make_shared<FirstValues>(spec.seed(), spec.model());
  plan->first_values = [values](const Slice& slice, float* out) {
    return values->Make(slice, out);
  };
  return std::shared_ptr<const ShardJobPlan>(std::move(plan));
}

}  // namespace starling
