// Where a lane's micro-batches wait if the host cannot access device memory: in pinned memory and
// then on the device, copied while the previous one is computed. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_STAGING_H_
#define STARLING_WORKER_EXECUTOR_STAGING_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/executor/copy_queue.h"
#include "worker/executor/device_memory.h"
#include "worker/executor/executor.h"
#include "worker/executor/program.h"

namespace starling {

// Host memory from which copies are fastest, in one block: pieces are taken once and never freed.
class PinnedPool {
 public:
  PinnedPool() = default;
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool() {
    if (memory_ != nullptr) device_->FreeHost(memory_);
  }

  // What a piece of `bytes` takes from the pool.
  static size_t PieceBytes(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // Called once.
  absl::Status Allocate(Device* device, size_t bytes);
  // Aligned to 64 bytes. At least that much must be left.
  char* Take(size_t bytes);
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kAlignment = 64;

  Device* device_ = nullptr;
  char* memory_ = nullptr;
  size_t bytes_ = 0, taken_ = 0;
};

// Used by one thread at a time: Stage, then Load, then Stage.
class InputStaging {
 public:
  // For micro-batches of at most these bytes; the same amount of device memory and of pinned
  // memory.
  static size_t Bytes(size_t input_bytes, size_t label_bytes) {
    return PinnedPool::PieceBytes(input_bytes) + PinnedPool::PieceBytes(label_bytes);
  }

  // `pinned`: Bytes() of host memory. All arguments outlive this.
  static absl::StatusOr<std::unique_ptr<InputStaging>> Create(Device* device, SpanRing* spans,
                                                              char* pinned, size_t input_bytes,
                                                              size_t label_bytes);

  void BeginUnit(Clock clock) { in_->Begin(clock); }
  absl::Status EndUnit() { return in_->Drain(); }

  // Copies what `program` reads of the batch to the device while it computes. Returns when the
  // batch is in pinned memory; a batch that was there already is read until EndUnit.
  absl::Status Stage(const Program& program, const MicroBatch& batch);
  // Copies into `program`'s own memory, for work ordered on `lane` after the call.
  absl::Status Load(Program& program, Stream& lane);

 private:
  InputStaging(char* pinned, size_t label_begin) : pinned_(pinned), label_begin_(label_begin) {}

  char* const pinned_;        // inputs, then labels; memory_ as well
  const size_t label_begin_;  // where labels start
  DeviceMemory memory_;
  std::unique_ptr<CopyQueue> in_;
  std::unique_ptr<Event> arrived_;  // set after the last Stage's copies
  std::unique_ptr<Event> taken_;    // set after the last Load's
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_STAGING_H_
