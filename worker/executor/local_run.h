// What a unit needs without a server: values that are always ready, and samples that stay the same.
// For benches, tests and advice.
#ifndef STARLING_WORKER_EXECUTOR_LOCAL_RUN_H_
#define STARLING_WORKER_EXECUTOR_LOCAL_RUN_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/executor/executor.h"

namespace starling {

// Every slice is ready: values change only between units, or where the executor says.
class OpenGate : public SliceGate {
 public:
  bool Wait(SliceId, uint64_t*) override { return true; }
};

// Micro-batches in memory: the i-th of a range is the i-th here, wrapping around after the last.
// Get is thread-safe.
class FixedBatches : public BatchSource {
 public:
  struct Sizes {
    int64_t micro_batches = 1;
    int64_t samples = 1;         // per micro-batch
    int64_t input_elements = 0;  // per sample; fp32 or int32, as in the graph
    int64_t label_elements = 0;
  };
  // In memory from which copies to `device` are fastest; `device` outlives this.
  // kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<FixedBatches>> Create(const Sizes& sizes, Device* device);
  ~FixedBatches() override;
  FixedBatches(const FixedBatches&) = delete;
  FixedBatches& operator=(const FixedBatches&) = delete;

  // [micro_batches * samples, elements]; write them before the first unit.
  void* inputs() { return inputs_; }
  void* labels() { return labels_; }

  absl::StatusOr<MicroBatch> Get(const WorkRange& range, uint64_t id) override;

 private:
  FixedBatches(const Sizes& sizes, Device* device) : sizes_(sizes), device_(device) {}

  const Sizes sizes_;
  Device* const device_;
  void* inputs_ = nullptr;
  void* labels_ = nullptr;
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_LOCAL_RUN_H_
