// Everything that a worker holds of the job it serves: data, executor, parameters, push buffers.
#ifndef STARLING_WORKER_HOST_SERVED_JOB_H_
#define STARLING_WORKER_HOST_SERVED_JOB_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/graph/graph.h"
#include "common/placement/layout.h"
#include "common/protocol/types.h"
#include "common/trace/span_ring.h"
#include "kernels/device.h"
#include "proto/coordinator.pb.h"
#include "worker/core/events.h"
#include "worker/data/loader.h"
#include "worker/executor/executor.h"
#include "worker/host/devices.h"
#include "worker/host/gradient_pool.h"
#include "worker/host/slice_versions.h"

namespace starling {

struct ServedJobOptions {
  int lanes = 1;
  uint64_t read_ahead_bytes_max = 64 << 20;
  uint64_t memory_bytes = 0;  // that a job's executor may plan; 0: nine tenths of what is available
  bool capture = true;        // ExecutorOptions::capture
  // Of tests and benches.
  std::optional<ReplayedCompute> replay;  // instead of computing
  absl::Duration data_wait;               // each micro-batch is handed over so much later
};

// Made on a background thread, then shared by the session's and the computing thread; each member
// says who may use it by its own contract.
class ServedJob {
 public:
  // Opens the data, resolves graph and layout, plans memory: blocks for seconds.
  // kFailedPrecondition: this build lays the job out differently than the coordinator's. Else the
  // errors of the parts.
  static absl::StatusOr<std::shared_ptr<ServedJob>> Open(const JobDescription& description,
                                                         const ServedJobOptions& options,
                                                         Device* device, SpanRing* spans);

  const JobDescription& description() const { return description_; }
  RunId run() const;
  const ResolvedGraph& graph() const { return graph_; }
  const Layout& layout() const { return layout_; }
  std::vector<session::SliceShape> SliceShapes() const;

  absl::Duration data_wait() const { return data_wait_; }
  // Of the data that it opened (worker/data/data_digest.h).
  uint64_t data_digest() const { return data_digest_; }
  Loader& loader() { return *loader_; }
  Executor& executor() { return *executor_; }
  const std::shared_ptr<GradientPool>& gradients() { return gradients_; }
  int push_buffers_max() const {
    return PushBuffersMax(description_.spec().batch().micro_batches());
  }
  SliceVersions& versions(session::Params params);
  float* parameters(session::Params params);
  // Whether what the job is computed on is gone for good, as it says itself.
  bool DeviceLost() const { return IsLost(*device_); }

  // Makes a unit that computes, or waits, return soon; Resume before the next.
  void Cancel();
  void Resume();

 private:
  ServedJob() = default;

  Device* device_ = nullptr;
  JobDescription description_;
  ResolvedGraph graph_;
  Layout layout_;
  absl::Duration data_wait_;
  uint64_t data_digest_ = 0;
  std::unique_ptr<Loader> loader_;
  std::shared_ptr<GradientPool> gradients_;
  std::unique_ptr<SliceVersions> live_;
  std::unique_ptr<SliceVersions> snapshot_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_SERVED_JOB_H_
