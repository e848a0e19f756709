#include "worker/host/executor_job.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/memory.h"
#include "common/base/status_macros.h"
#include "common/data_plan/batch_plan.h"
#include "common/version/version.h"
#include "spdlog/spdlog.h"
#include "worker/core/session.h"
#include "worker/data/data_digest.h"
#include "worker/data/data_set.h"
#include "worker/host/step_recorder.h"

namespace starling {
namespace {

// The sizes of micro-batches in a pass over `samples`. An epoch that Stop.steps cuts short has no
// others.
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

// Every worker must see the samples with which the job was accepted, or its epochs would differ.
absl::Status CheckSamples(const char* part, const DataSet& data, uint64_t accepted) {
  if (static_cast<uint64_t>(data.samples()) == accepted) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(part, ": this worker sees ", data.samples(),
                                          " samples, but the job was accepted with ", accepted,
                                          ": the files changed, or differ between machines"));
}

absl::StatusOr<std::unique_ptr<Loader>> OpenData(const JobDescription& description,
                                                 const ExecutorJobOptions& options, SpanRing* spans,
                                                 uint64_t* digest) {
  const JobSpec& spec = description.spec();
  DataSetOptions data_options;
  data_options.sample_shape.assign(spec.sample_shape().begin(), spec.sample_shape().end());
  data_options.classes = spec.model().classes();
  data_options.augment = spec.augment();
  data_options.warn = [](const std::string& text) { spdlog::warn("{}", text); };
  STARLING_ASSIGN_OR_RETURN(std::shared_ptr<const DataSet> train,
                            DataSet::Open(spec.train(), spec.normalize(), data_options));
  STARLING_RETURN_IF_ERROR(CheckSamples("data.train", *train, description.train_samples()));
  data_options.augment = Augment();
  std::shared_ptr<const DataSet> test;
  if (spec.evaluate().every_epochs() > 0) {
    STARLING_ASSIGN_OR_RETURN(test, DataSet::Open(spec.test(), spec.normalize(), data_options));
    STARLING_RETURN_IF_ERROR(CheckSamples("data.test", *test, description.test_samples()));
  }
  STARLING_ASSIGN_OR_RETURN(*digest, DataDigest(*train, test.get(), spec.seed()));
  LoaderOptions loader;
  loader.seed = spec.seed();
  loader.global_batch = spec.batch().global();
  loader.micro_batches = spec.batch().micro_batches();
  const Loading& loading = spec.loading();
  if (loading.threads() > 0) loader.threads = static_cast<int>(loading.threads());
  loader.read_ahead_bytes_max =
      loading.read_ahead_bytes() > 0 ? loading.read_ahead_bytes() : options.read_ahead_bytes_max;
  // Twice, since the previous request may still be there.
  loader.asked_at_once = 2 * session::SessionOptions().prefetch_ranges * loader.micro_batches;
  loader.spans = spans;
  return Loader::Create(std::move(train), std::move(test), loader);
}

absl::StatusOr<Layout> LayoutOf(const JobDescription& description) {
  STARLING_ASSIGN_OR_RETURN(Layout layout, MakeLayout(description.spec()));
  if (layout.digest != description.layout_digest()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this worker (version ", std::string(ReleaseVersion()),
                     ") lays the job's parameters out differently than the "
                     "coordinator (digests ",
                     absl::Hex(layout.digest), " and ", absl::Hex(description.layout_digest()),
                     "): run the same version everywhere"));
  }
  if (layout.partitions.size() != description.partitions()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator divides the job into ", description.partitions(),
                     " partitions, this worker into ", layout.partitions.size()));
  }
  return layout;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ExecutorJob>> ExecutorJob::Open(ExecutorRunner* runner,
                                                               const JobDescription& description,
                                                               const ExecutorJobOptions& options,
                                                               Device* device, SpanRing* spans) {
  STARLING_ASSIGN_OR_RETURN(ResolvedGraph graph, Validate(description.spec().model()));
  STARLING_ASSIGN_OR_RETURN(Layout layout, LayoutOf(description));
  std::shared_ptr<ExecutorJob> job(new ExecutorJob(description, std::move(layout)));
  job->runner_ = runner;
  job->device_ = device;
  job->graph_ = std::move(graph);
  job->data_wait_ = options.data_wait;
  job->non_finite_steps_ = options.non_finite_steps;
  job->recorder_ = options.recorder;
  auto loader = OpenData(description, options, spans, &job->data_digest_);
  // The data was valid when the job was accepted.
  if (absl::IsInvalidArgument(loader.status()))
    return absl::DataLossError(loader.status().message());
  if (!loader.ok()) return loader.status();
  job->loader_ = *std::move(loader);
  STARLING_RETURN_IF_ERROR(job->OpenExecutor(options, spans));
  return job;
}

absl::Status ExecutorJob::OpenExecutor(const ExecutorJobOptions& options, SpanRing* spans) {
  const JobSpec& spec = description().spec();
  ExecutorOptions executor;
  executor.global_batch = spec.batch().global();
  executor.micro_batches = spec.batch().micro_batches();
  executor.lanes = LanesOn(*device_, options.lanes, spec.batch().micro_batches());
  executor.kernel_threads = spec.batch().kernel_threads();
  executor.seed = spec.seed();
  executor.recompute = spec.recompute();
  executor.type = TypeOf(spec.precision());
  // BSP promises the same bits on every worker and in every run (docs/consistency.md).
  executor.tune = spec.policy().kind() != Policy::BSP;
  executor.tf32 = spec.tf32();
  executor.capture = options.capture;
  executor.replay = options.replay;
  executor.bytes_max = options.memory_bytes;
  if (executor.bytes_max == 0) {
    STARLING_ASSIGN_OR_RETURN(executor.bytes_max, BytesToPlan(*device_));
  }
  STARLING_ASSIGN_OR_RETURN(executor.train_samples,
                            MicroBatchSizes(description().train_samples(), spec.batch()));
  if (spec.evaluate().every_epochs() > 0) {
    STARLING_ASSIGN_OR_RETURN(executor.evaluate_samples,
                              MicroBatchSizes(description().test_samples(), spec.batch()));
  }
  STARLING_ASSIGN_OR_RETURN(executor_,
                            Executor::Create(graph_, layout(), executor, device_, spans));
  if (executor_->pinned_bytes() > 0) {
    spdlog::info("pins {} bytes for copies to and from the device", executor_->pinned_bytes());
  }
  gradients_ = std::make_shared<GradientPool>(layout(), device_);
  ParameterCopy::Installed record;
  if (recorder_ != nullptr) {
    recorder_->BeginJob(description(), layout());
    record = [recorder = recorder_](SliceId slice, Clock clock, absl::Span<const float> value) {
      recorder->Value(slice, clock, value);
    };
  }
  live_ = std::make_unique<ParameterCopy>(layout(), session::Params::kLive,
                                          executor_->live_parameters(), std::move(record));
  snapshot_ = std::make_unique<ParameterCopy>(layout(), session::Params::kSnapshot,
                                              executor_->snapshot_parameters());
  return absl::OkStatus();
}

ParameterCopy& ExecutorJob::copy(session::Params params) {
  return params == session::Params::kLive ? *live_ : *snapshot_;
}

MemoryUse ExecutorJob::memory() const {
  MemoryUse use;
  use.set_planned_bytes(executor_->planned_bytes());
  use.set_activation_bytes(executor_->planned_activation_bytes());
  use.set_peak_bytes(PeakResidentBytes());
  use.set_device_peak_bytes(executor_->device_peak_bytes());
  return use;
}

absl::Status ExecutorJob::Prefetch(const WorkRange& range) {
  WorkRange rest = range;
  {
    MutexLock lock(&mutex_);
    upcoming_.push_back(range);
    WorkRange first = range;
    first.count = 1;
    if (first == taken_ahead_) {
      ++rest.first;
      --rest.count;
    }
  }
  return rest.count == 0 ? absl::OkStatus() : loader_->Prefetch(rest);
}

void ExecutorJob::ClearPrefetched() {
  {
    MutexLock lock(&mutex_);
    upcoming_.clear();
  }
  loader_->Clear();
}

std::optional<WorkRange> ExecutorJob::Upcoming() const {
  MutexLock lock(&mutex_);
  if (upcoming_.empty() || upcoming_.front().purpose != WorkPurpose::kTrain) return std::nullopt;
  return upcoming_.front();
}

void ExecutorJob::TakenAhead(const WorkRange& micro) {
  MutexLock lock(&mutex_);
  taken_ahead_ = micro;
}

void ExecutorJob::Begin(absl::Span<const WorkRange> ranges) {
  MutexLock lock(&mutex_);
  taken_ahead_.reset();
  std::erase_if(upcoming_, [&](const WorkRange& range) {
    return std::find(ranges.begin(), ranges.end(), range) != ranges.end();
  });
}

void ExecutorJob::Cancel() {
  live_->Cancel();
  snapshot_->Cancel();
  gradients_->Cancel();
}

void ExecutorJob::Resume() {
  live_->Resume();
  snapshot_->Resume();
  gradients_->Resume();
}

}  // namespace starling
