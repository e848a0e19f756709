#include "worker/runtime/served_job.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/memory.h"
#include "common/base/status_macros.h"
#include "common/data_plan/batch_plan.h"
#include "common/version/version.h"
#include "worker/data/data_set.h"

namespace starling {
namespace {

// The sizes of micro-batches that a pass over `samples` meets. An epoch that is cut short by
// Stop.steps meets no others.
absl::StatusOr<std::vector<int64_t>> MicroBatchSizes(int64_t samples, const Batch& batch) {
  STARLING_ASSIGN_OR_RETURN(const BatchPlan plan,
                            BatchPlan::Make(samples, batch.global(), batch.micro_batches()));
  std::set<int64_t> sizes;
  if (plan.steps() > 1) sizes.insert(plan.micro_batch_samples());
  for (uint64_t id = (plan.steps() - 1) * plan.micro_batches(); id < plan.ids(); ++id) {
    sizes.insert(plan.Positions(id).size());
  }
  sizes.erase(0);
  return std::vector<int64_t>(sizes.begin(), sizes.end());
}

absl::StatusOr<std::unique_ptr<Loader>> OpenData(const JobSpec& spec, const ServedJobOptions& options,
                                                 SpanRing* spans) {
  DataSetOptions data_options;
  data_options.sample_shape.assign(spec.sample_shape().begin(), spec.sample_shape().end());
  data_options.classes = spec.model().classes();
  STARLING_ASSIGN_OR_RETURN(std::shared_ptr<const DataSet> train,
                            DataSet::Open(spec.train(), spec.normalize(), data_options));
  std::shared_ptr<const DataSet> test;
  if (spec.evaluate().every_epochs() > 0) {
    STARLING_ASSIGN_OR_RETURN(test, DataSet::Open(spec.test(), spec.normalize(), data_options));
  }
  LoaderOptions loader;
  loader.seed = spec.seed();
  loader.global_batch = spec.batch().global();
  loader.micro_batches = spec.batch().micro_batches();
  loader.read_ahead_bytes_max = options.read_ahead_bytes_max;
  loader.spans = spans;
  return Loader::Create(std::move(train), std::move(test), loader);
}

}  // namespace

absl::StatusOr<std::shared_ptr<ServedJob>> ServedJob::Open(const JobDescription& description,
                                                           const ServedJobOptions& options,
                                                           Device* device, SpanRing* spans) {
  std::shared_ptr<ServedJob> job(new ServedJob());
  job->description_ = description;
  const JobSpec& spec = description.spec();
  STARLING_ASSIGN_OR_RETURN(job->graph_, Validate(spec.model()));
  STARLING_ASSIGN_OR_RETURN(job->layout_, MakeLayout(spec.model()));
  if (job->layout_.digest != description.layout_digest()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this worker (version ", std::string(ReleaseVersion()), ") lays the job's parameters out differently than the "
        "coordinator (digests ", absl::Hex(job->layout_.digest), " and ",
        absl::Hex(description.layout_digest()), "): run the same version everywhere"));
  }
  if (job->layout_.partitions.size() != description.partitions()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator speaks of ", description.partitions(), " partitions; the job has ",
                     job->layout_.partitions.size()));
  }
  STARLING_ASSIGN_OR_RETURN(job->loader_, OpenData(spec, options, spans));

  ExecutorOptions executor;
  executor.global_batch = spec.batch().global();
  executor.micro_batches = spec.batch().micro_batches();
  executor.lanes = std::min<int>(options.lanes, spec.batch().micro_batches());
  executor.kernel_threads = spec.batch().kernel_threads();
  executor.seed = spec.seed();
  // The rest is for batches that are staged and values under way.
  executor.bytes_max = AvailableMemoryBytes() / 10 * 9;
  STARLING_ASSIGN_OR_RETURN(executor.train_samples,
                            MicroBatchSizes(description.train_samples(), spec.batch()));
  if (spec.evaluate().every_epochs() > 0) {
    STARLING_ASSIGN_OR_RETURN(executor.evaluate_samples,
                              MicroBatchSizes(description.test_samples(), spec.batch()));
  }
  STARLING_ASSIGN_OR_RETURN(job->executor_,
                            Executor::Create(job->graph_, job->layout_, executor, device, spans));
  job->gradients_ = std::make_shared<GradientPool>(job->layout_, device);
  job->live_ = std::make_unique<SliceVersions>(job->layout_.slices.size());
  job->snapshot_ = std::make_unique<SliceVersions>(job->layout_.slices.size());
  return job;
}

RunId ServedJob::run() const {
  return {JobUid(description_.run().job_uid()), description_.run().era()};
}

std::vector<session::SliceShape> ServedJob::SliceShapes() const {
  std::vector<session::SliceShape> shapes;
  for (const Slice& slice : layout_.slices) {
    shapes.push_back({slice.partition, slice.elements, slice.kind != FROZEN});
  }
  return shapes;
}

SliceVersions& ServedJob::versions(session::Params params) {
  return params == session::Params::kLive ? *live_ : *snapshot_;
}

float* ServedJob::parameters(session::Params params) {
  return params == session::Params::kLive ? executor_->live_parameters()
                                          : executor_->snapshot_parameters();
}

void ServedJob::Cancel() {
  live_->Cancel();
  snapshot_->Cancel();
  gradients_->Cancel();
}

void ServedJob::Resume() {
  live_->Resume();
  snapshot_->Resume();
  gradients_->Resume();
}

}  // namespace starling
