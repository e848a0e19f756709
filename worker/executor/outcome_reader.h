// Reads a micro-batch's outcome from the device. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_OUTCOME_READER_H_
#define STARLING_WORKER_EXECUTOR_OUTCOME_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/graph/graph.h"
#include "kernels/device.h"
#include "worker/executor/device_memory.h"
#include "worker/executor/job_memory.h"
#include "worker/executor/micro_batches.h"
#include "worker/executor/program.h"
#include "worker/executor/staging.h"

namespace starling {

// One per lane: used by one thread at a time.
class OutcomeReader {
 public:
  // What it takes from the pool, for micro-batches of at most `samples`.
  static size_t PinnedBytes(const JobMemory& memory, int64_t samples) {
    return PinnedPool::PieceBytes(LossBytes(samples)) +
           PinnedPool::PieceBytes(memory.judged_bytes(samples));
  }

  // Called once. All arguments outlive this.
  absl::Status Allocate(Device* device, const JobMemory& memory, int64_t samples,
                        PinnedPool* pinned, Stream& stream);

  // Called after the program's forward was ordered on the stream; waits for it.
  absl::StatusOr<Outcome> Read(const Program& program, Stream& stream);

 private:
  static size_t LossBytes(int64_t samples) { return samples * sizeof(float); }

  Device* device_ = nullptr;
  const ResolvedGraph* graph_ = nullptr;
  float* losses_ = nullptr;      // pinned
  DeviceMemory judged_;          // correct predictions per sample
  uint32_t* correct_ = nullptr;  // the same, pinned
};

// Runs forward again on what is loaded. Returns the first operator whose output is not finite, as
// "conv2 (conv2d)"; empty if there is none.
absl::StatusOr<std::string> FirstNonFinite(const ResolvedGraph& graph, Device* device,
                                           const RandomKey& random, Program& program,
                                           Stream& stream);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_OUTCOME_READER_H_
