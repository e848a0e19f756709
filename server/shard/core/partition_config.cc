#include "server/shard/core/partition_config.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/data_plan/batch_plan.h"
#include "common/data_plan/job_steps.h"
#include "common/defences.h"
#include "common/placement/layout.h"
#include "common/placement/shard_memory_plan.h"
#include "common/schedule/learning_rate.h"
#include "proto/coordinator.pb.h"

namespace starling {
namespace {

absl::Status BadJob(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("job description: ", what));
}

// Names the parameter's element at an element of a slice.
class ElementNames {
 public:
  ElementNames(const Graph& graph, const Layout& layout, PartitionId partition) {
    for (const SliceId id : layout.partitions[partition.value]) {
      for (const Segment& segment : layout.slices[id.value].segments) {
        segments_[id].push_back(
            {segment, graph.parameters(static_cast<int>(segment.param)).name()});
      }
    }
  }

  std::string operator()(SliceId slice, uint32_t element) const {
    const auto it = segments_.find(slice);
    if (it != segments_.end()) {
      for (const auto& [segment, name] : it->second) {
        if (element - segment.slice_begin >= segment.length) continue;
        return absl::StrCat(name, "[", segment.param_begin + (element - segment.slice_begin), "]");
      }
    }
    return absl::StrCat("slice ", slice.value, "[", element, "]");
  }

 private:
  absl::btree_map<SliceId, std::vector<std::pair<Segment, std::string>>> segments_;
};

// Norms cover trainable slices only. A skipped step leaves statistics unchanged, too.
void FillDecisions(const JobSpec& spec, const Layout& layout, PartitionConfig* config) {
  const bool clips = spec.clip().scope() == Clip::GLOBAL;
  config->scales_loss = spec.precision() == PRECISION_FP16;
  if (clips) config->clip_norm = spec.clip().norm();
  const auto is_clipped = [&](SliceId id) {
    return clips && layout.slices[id.value].kind == TRAINABLE;
  };
  const auto is_decided = [&](SliceId id) {
    return is_clipped(id) || (config->scales_loss && layout.slices[id.value].kind != FROZEN);
  };
  for (PartitionConfig::SliceInfo& slice : config->slices) {
    slice.clipped = is_clipped(slice.id);
    slice.decided = is_decided(slice.id);
  }
  for (uint32_t p = 0; p < layout.partitions.size(); ++p) {
    const std::vector<SliceId>& slices = layout.partitions[p];
    if (std::any_of(slices.begin(), slices.end(), is_decided))
      config->reporters.push_back(PartitionId(p));
  }
}

absl::Status FillSteps(const JobDescription& job, PartitionConfig* config) {
  const JobSpec& spec = job.spec();
  STARLING_RETURN_IF_ERROR(BatchPlan::Make(static_cast<int64_t>(job.train_samples()),
                                           spec.batch().global(), spec.batch().micro_batches())
                               .status());
  if (spec.stop().epochs() == 0 && spec.stop().steps() == 0)
    return BadJob("neither stop.epochs nor stop.steps is set");
  config->samples = job.train_samples();
  config->batch = spec.batch().global();
  config->micro_batches = spec.batch().micro_batches();
  config->backup_workers = spec.workers_backup();
  config->steps = JobSteps(spec, job.train_samples());
  config->open_items_max = OpenItemsMax(spec, job.train_samples());
  return absl::OkStatus();
}

absl::Status FillStart(const JobDescription& job, PartitionConfig* config) {
  if (!job.has_restore()) return absl::OkStatus();
  const Restore& restore = job.restore();
  PartitionConfig::Start start;
  start.step = restore.step();
  start.skipped = restore.skipped();
  start.updates_before = restore.updates_before();
  start.policy = {PolicyNumber(), config->policy, restore.step()};
  if (restore.has_copy_epoch()) start.copy = restore.copy_epoch();
  switch (restore.mode()) {
    case Restore::CONTINUE:
      if (DefenceMasked(Defence::kRestoreScale)) break;
      start.loss_scale = {restore.loss_scale_log2(), restore.loss_scale_clean()};
      break;
    case Restore::VALUES:
    case Restore::VALUES_AND_OPTIMIZER:
      if (start.step == 0) break;
      return BadJob(absl::StrCat("another job begins at step ", start.step, "; expected 0"));
    default:
      return BadJob(absl::StrCat("restore.mode ", static_cast<int>(restore.mode()),
                                 "; run the same release everywhere"));
  }
  if (start.step >= config->steps) {
    return BadJob(absl::StrCat("it begins at step ", start.step, " and has ", config->steps));
  }
  if (start.skipped > start.step)
    return BadJob(absl::StrCat(start.skipped, " steps of ", start.step, " are skipped"));
  if (start.copy.has_value() && (*start.copy + uint64_t{1}) * config->FullSteps() > start.step) {
    return BadJob(absl::StrCat("it begins at step ", start.step, " with a copy of epoch ",
                               *start.copy, ", which is not over"));
  }
  if (LossScale scale; !scale.Restore(start.loss_scale))
    return BadJob(absl::StrCat("a loss scale of 2^", start.loss_scale.log2));
  config->start = start;
  return absl::OkStatus();
}

}  // namespace

uint64_t PartitionConfig::StepsIn(uint32_t epoch) const {
  if (epoch >= Epochs()) return 0;  // first: an epoch from a frame may overflow the product
  const uint64_t before = epoch * FullSteps();
  return before >= steps ? 0 : std::min(FullSteps(), steps - before);
}

uint64_t PartitionConfig::SamplesIn(const WorkRange& work) const {
  const uint64_t each = batch / micro_batches;
  const uint64_t begin = std::min(samples, work.first * each);
  const uint64_t end = std::min(samples, (work.first + work.count) * each);
  return end - begin;
}

bool PartitionConfig::KeepsLossScale() const {
  return scales_loss && !slices.empty() && slices.front().id == kLossScaleSlice &&
         slices.front().updated;
}

absl::StatusOr<ConsistencyPolicy> PolicyFromProto(const Policy& policy) {
  switch (policy.kind()) {
    case Policy::BSP: return ConsistencyPolicy{PolicyKind::kBsp, 0};
    case Policy::SSP: return ConsistencyPolicy{PolicyKind::kSsp, policy.staleness()};
    case Policy::ASYNC: return ConsistencyPolicy{PolicyKind::kAsync, 0};
    default: break;
  }
  return BadJob(
      absl::StrCat("policy ", static_cast<int>(policy.kind()), "; expected bsp, ssp or async"));
}

const Policy& FirstPolicy(const JobDescription& job) {
  const bool continues = job.restore().mode() == Restore::CONTINUE;
  return continues ? job.restore().policy() : job.spec().policy();
}

absl::StatusOr<PartitionConfig> MakePartitionConfig(const JobDescription& job, const Layout& layout,
                                                    PartitionId partition, ShardId self) {
  if (job.layout_digest() != layout.digest) {
    return BadJob(absl::StrCat("layout digest ", job.layout_digest(), ", but this build computes ",
                               layout.digest, ": run the same version everywhere"));
  }
  if (partition.value >= layout.partitions.size()) {
    return BadJob(absl::StrCat("partition ", partition.value, " of ", layout.partitions.size()));
  }
  PartitionConfig config;
  config.run = {JobUid(job.run().job_uid()), job.run().era()};
  config.partition = partition;
  config.self = self;
  for (const SliceId id : layout.partitions[partition.value]) {
    const Slice& slice = layout.slices[id.value];
    config.slices.push_back({id, slice.elements, slice.kind != FROZEN});
    config.slices.back().slots = OptimizerSlots(job.spec().optimizer(), slice);
    if (slice.kind != TRAINABLE) continue;
    const GroupSettings settings = SettingsOf(job.spec().optimizer(), slice.group);
    config.slices.back().rate_scale = settings.rate_scale;
    config.slices.back().decay = settings.weight_decay;
  }
  STARLING_RETURN_IF_ERROR(FillSteps(job, &config));
  STARLING_ASSIGN_OR_RETURN(config.policy, PolicyFromProto(FirstPolicy(job)));
  STARLING_RETURN_IF_ERROR(FillStart(job, &config));
  FillDecisions(job.spec(), layout, &config);
  STARLING_ASSIGN_OR_RETURN(
      const LearningRate rate,
      LearningRate::Make(job.spec().optimizer().learning_rate(), config.steps));
  config.rate = [rate](int64_t step) { return rate.At(step); };
  JobSpec lengths;  // the fields that determine epochs, without the model
  *lengths.mutable_batch() = job.spec().batch();
  *lengths.mutable_stop() = job.spec().stop();
  *lengths.mutable_evaluate() = job.spec().evaluate();
  config.evaluates_at = [lengths, samples = job.train_samples()](uint32_t epoch) {
    return EvaluatesAt(lengths, samples, epoch);
  };
  config.name_of_element = ElementNames(job.spec().model(), layout, partition);
  return config;
}

}  // namespace starling
