// How much device memory a job takes, and what would fit where that is too much: plans only,
// nothing is allocated. For the executor and for advice on batches.
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

// Thread-safe: constant.
class JobMemory {
 public:
  struct Planned {
    size_t bytes = 0;             // in all
    size_t activation_bytes = 0;  // of one lane, without gradients of shared parameters
    double recomputed_share = 0;  // of forward, by estimated cost
  };

  // All but `graph` outlive this. Read of `options`: global_batch, micro_batches, evaluate_samples
  // (whether there are any), lanes, kernel_threads, type, tf32, bytes_max,
  // capture.
  JobMemory(const ResolvedGraph& graph, const Layout& layout, const ExecutorOptions& options,
            Device* device);

  // The graph as the device computes it (Fuse): of this one the plans are.
  const ResolvedGraph& graph() const { return graph_; }

  // Of the size of all parameters: these themselves, gradients of lanes and of sums that wait.
  size_t flat_buffers() const;
  size_t flat_bytes() const { return layout_.elements * sizeof(float); }
  // Of the counts of right predictions, one for each sample; 0 where none are judged.
  size_t judged_bytes(int64_t samples) const;

  // Of what differs from one micro-batch of a lane to the next; 0 where nothing is captured.
  size_t step_values_bytes() const;

  // Of inputs and labels, in plain order.
  size_t input_bytes(int64_t samples) const;
  size_t label_bytes(int64_t samples) const;
  // Of each lane, for a micro-batch that waits on the device for its turn, and as much in pinned
  // memory; 0 where the host reaches device memory.
  size_t staging_bytes(int64_t samples) const;

  // In all, with so large an arena and micro-batches of at most so many samples.
  size_t BytesWith(size_t arena_bytes, int64_t samples) const;

  // Training with micro-batches of so many samples. Makes a program: takes up to seconds. The
  // errors are Program::Create's.
  absl::StatusOr<Planned> Plan(int64_t samples, const Recompute& recompute) const;

  // kResourceExhausted: bytes_max would be exceeded; says what is planned, and which batch and
  // which recomputing would fit.
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
