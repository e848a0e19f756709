// How much device memory a job needs, and what would fit if that is too much. Plans only: nothing
// is allocated. For the executor and for advice on batches.
#ifndef STARLING_WORKER_EXECUTOR_JOB_MEMORY_H_
#define STARLING_WORKER_EXECUTOR_JOB_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/graph/graph.h"
#include "common/placement/layout.h"
#include "kernels/device.h"
#include "proto/job.pb.h"
#include "worker/executor/executor.h"

namespace starling {

// "12.5 MiB".
std::string MiBText(size_t bytes);

// Thread-safe because constant.
class JobMemory {
 public:
  struct Planned {
    size_t bytes = 0;             // in total
    size_t activation_bytes = 0;  // one lane's, without gradients of shared parameters
    double recomputed_share = 0;  // of forward, by estimated cost
  };

  // All but `graph` outlive this. Uses these `options`: global_batch, micro_batches,
  // evaluate_samples (whether there are any), lanes, kernel_threads, type, tf32, bytes_max,
  // capture.
  JobMemory(const ResolvedGraph& graph, const Layout& layout, const ExecutorOptions& options,
            Device* device);

  // The graph as the device computes it (Fuse); the plans are for this one.
  const ResolvedGraph& graph() const { return graph_; }

  // The number of buffers of the size of all parameters: the parameters, gradients of lanes and of
  // waiting sums.
  size_t flat_buffers() const;
  size_t flat_bytes() const { return layout_.elements * sizeof(float); }
  // For the counts of correct predictions, one per sample; 0 if none are judged.
  size_t judged_bytes(int64_t samples) const;

  // For a lane's StepValues; 0 if nothing is captured.
  size_t step_values_bytes() const;

  // For inputs and labels, in plain order.
  size_t input_bytes(int64_t samples) const;
  size_t label_bytes(int64_t samples) const;
  // Per lane, for a micro-batch staged on the device, and as much again in pinned memory; 0 if the
  // host can access device memory.
  size_t staging_bytes(int64_t samples) const;

  // Total for an arena of this size and micro-batches of at most `samples`.
  size_t BytesWith(size_t arena_bytes, int64_t samples) const;

  // Training with micro-batches of `samples`. Creates a program: takes up to seconds. Errors are
  // those of Program::Create.
  absl::StatusOr<Planned> Plan(int64_t samples, const Recompute& recompute) const;

  // kResourceExhausted: bytes_max would be exceeded; the message says what is planned, and which
  // batch and which recomputation would fit.
  absl::Status Check(size_t arena_bytes, int64_t samples, const Recompute& recompute) const;

 private:
  std::string WhatFits(size_t arena_bytes, int64_t samples, const Recompute& recompute) const;
  std::string SmallerBatch(int64_t samples, const Recompute& recompute) const;
  std::string MoreRecomputing(size_t arena_bytes, int64_t samples) const;

  const ResolvedGraph graph_;
  const Layout& layout_;
  const ExecutorOptions& options_;
  Device* const device_;
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_JOB_MEMORY_H_
