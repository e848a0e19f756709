#include "server/shard/host/shard_job.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/data_plan/job_steps.h"
#include "common/placement/shard_memory_plan.h"
#include "server/shard/apply/init.h"
#include "server/shard/host/checkpoint_values.h"

namespace starling {

uint64_t ShardJobPlan::PlannedBytes(PartitionId partition) const {
  return PlannedPartitionBytes(description.spec(), description.train_samples(), layout, partition);
}

uint64_t ShardJobPlan::BspBytesMore(PartitionId partition) const {
  return BspPartitionBytesMore(description.spec(), layout, partition);
}

namespace {

absl::Status TakeFromCheckpoint(std::shared_ptr<CheckpointDisk> disk, ShardJobPlan& plan) {
  const JobDescription& job = plan.description;
  const Restore& restore = job.restore();
  const std::optional<CheckpointId> id = ParseCheckpointId(restore.checkpoint());
  if (!id.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", job.spec().name(), " begins with the checkpoint \"",
                     restore.checkpoint(), "\", which is no id of one"));
  }
  if (disk == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.spec().name(), " begins with checkpoint ", restore.checkpoint(),
        ", and this shard has no --checkpoint-root: start it with that of the coordinator"));
  }
  const auto values = std::make_shared<CheckpointValues>(
      std::move(disk), *id, restore.manifest_digest(), plan.description.spec().model());
  plan.first_values = [values](const Slice& slice, float* out) {
    return values->Read(slice, BlockPart::kValue, out);
  };
  if (restore.mode() != Restore::VALUES) {
    plan.first_slots = [values](const Slice& slice, int slot, float* out) {
      return values->Read(slice, slot == 0 ? BlockPart::kSlot0 : BlockPart::kSlot1, out);
    };
  }
  const uint64_t epoch_steps = StepsInFullEpoch(job.spec(), job.train_samples());
  if ((restore.copy_epoch() + uint64_t{1}) * epoch_steps != restore.step()) {
    plan.first_copy = [values](const Slice& slice, float* out) {
      return values->Read(slice, BlockPart::kEvaluation, out);
    };
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ShardJobPlan>> MakeShardJobPlan(
    const JobDescription& job, std::shared_ptr<CheckpointDisk> disk) {
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
  if (job.has_restore()) {
    STARLING_RETURN_IF_ERROR(TakeFromCheckpoint(std::move(disk), *plan));
    return std::shared_ptr<const ShardJobPlan>(std::move(plan));
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
