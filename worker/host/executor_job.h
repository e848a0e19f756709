// A job on an executor: its data, parameters and push buffers.
#ifndef STARLING_WORKER_HOST_EXECUTOR_JOB_H_
#define STARLING_WORKER_HOST_EXECUTOR_JOB_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/graph/graph.h"
#include "common/placement/layout.h"
#include "common/protocol/types.h"
#include "common/sync/mutex.h"
#include "common/trace/span_ring.h"
#include "kernels/device.h"
#include "proto/coordinator.pb.h"
#include "worker/data/loader.h"
#include "worker/executor/executor.h"
#include "worker/host/devices.h"
#include "worker/host/gradient_pool.h"
#include "worker/host/served_job.h"

namespace starling {

class ExecutorRunner;
class StepRecorder;

struct ExecutorJobOptions {
  int lanes = 1;
  uint64_t read_ahead_bytes_max = 64 << 20;
  uint64_t memory_bytes = 0;         // for a job's executor; 0: nine tenths of the available memory
  bool capture = true;               // ExecutorOptions::capture
  StepRecorder* recorder = nullptr;  // records what is computed; may be null; outlives the job
  // For tests and benches.
  std::optional<ReplayedCompute> replay;  // instead of computing
  absl::Duration data_wait;               // each micro-batch is handed over this much later
  uint64_t non_finite_steps = 0;          // the gradients of every so many-th step are spoiled
};

// The contract of each member says which threads may use it.
class ExecutorJob final : public ServedJob, public std::enable_shared_from_this<ExecutorJob> {
 public:
  // Blocks for seconds. Errors as in JobRunner::Open. `device` and `spans` outlive the job.
  // `runner` must outlive calls of Start, and may be null if there are none.
  static absl::StatusOr<std::shared_ptr<ExecutorJob>> Open(ExecutorRunner* runner,
                                                           const JobDescription& description,
                                                           const ExecutorJobOptions& options,
                                                           Device* device, SpanRing* spans);

  ParameterCopy& copy(session::Params params) override;
  void Start(session::action::Compute compute) override;
  absl::Status Prefetch(const WorkRange& range) override;
  void ClearPrefetched() override;
  uint64_t data_digest() const override { return data_digest_; }
  MemoryUse memory() const override;
  ExecutorTimes times() const override { return executor_->times(); }
  std::vector<std::string> slower_operators() const override {
    return executor_->slower_operators();
  }

  // The range that was prefetched first and not begun yet, if it is one of training. Thread-safe.
  std::optional<WorkRange> Upcoming() const;
  // Says that micro-batch `micro` of the upcoming range was taken before its unit. Thread-safe.
  void TakenAhead(const WorkRange& micro);
  // `ranges` are no longer upcoming. Thread-safe.
  void Begin(absl::Span<const WorkRange> ranges);

  absl::Duration data_wait() const { return data_wait_; }
  // Whether an injection makes the gradients of the job's step non-finite.
  bool spoils(uint64_t step) const {
    return non_finite_steps_ > 0 && (step + 1) % non_finite_steps_ == 0;
  }
  StepRecorder* recorder() const { return recorder_; }  // may be null
  Loader& loader() { return *loader_; }
  Executor& executor() { return *executor_; }
  const std::shared_ptr<GradientPool>& gradients() { return gradients_; }
  int push_buffers_max() const {
    return PushBuffersMax(description().spec().batch().micro_batches());
  }
  // Whether the job's device reports that it is permanently lost.
  bool DeviceLost() const { return IsLost(*device_); }

  // Makes a computing or waiting unit return soon. Call Resume before the next unit. Thread-safe.
  void Cancel();
  void Resume();

 private:
  ExecutorJob(const JobDescription& description, Layout layout)
      : ServedJob(description, std::move(layout)) {}
  absl::Status OpenExecutor(const ExecutorJobOptions& options, SpanRing* spans);

  ExecutorRunner* runner_ = nullptr;
  Device* device_ = nullptr;
  ResolvedGraph graph_;
  absl::Duration data_wait_;
  uint64_t non_finite_steps_ = 0;
  StepRecorder* recorder_ = nullptr;
  uint64_t data_digest_ = 0;
  std::unique_ptr<Loader> loader_;
  std::shared_ptr<GradientPool> gradients_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<ParameterCopy> live_, snapshot_;

  mutable Mutex mutex_;
  std::deque<WorkRange> upcoming_ ABSL_GUARDED_BY(mutex_);  // in the order of requests
  // Not requested from the loader again, where it would stay.
  std::optional<WorkRange> taken_ahead_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_EXECUTOR_JOB_H_
