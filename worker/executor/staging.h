// Where a lane's micro-batches wait for their turn, where the host does not reach device memory: in
// pinned memory, and from there on the device, copied while the one before is computed. Private to
// the executor.
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

// Host memory from which copies run fastest, in one block: pieces are taken once, and never freed.
class PinnedPool {
 public:
  PinnedPool() = default;
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool() {
    if (memory_ != nullptr) device_->FreeHost(memory_);
  }

  // What a piece of so many bytes takes of the pool.
  static size_t PieceBytes(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // Once.
  absl::Status Allocate(Device* device, size_t bytes);
  // Aligned to 64 bytes. There must be so much left.
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
  // Of micro-batches of at most so many bytes: of device memory, and of pinned memory.
  static size_t Bytes(size_t input_bytes, size_t label_bytes) {
    return PinnedPool::PieceBytes(input_bytes) + PinnedPool::PieceBytes(label_bytes);
  }

  // `pinned`: Bytes() of host memory. All outlive this.
  static absl::StatusOr<std::unique_ptr<InputStaging>> Create(Device* device, SpanRing* spans,
                                                              char* pinned, size_t input_bytes,
                                                              size_t label_bytes);

  void BeginUnit(Clock clock) { in_->Begin(clock); }
  absl::Status EndUnit() { return in_->Drain(); }

  // Brings what `program` reads of the batch to the device, beside what is computed there. Returns
  // when it is in pinned memory.
  absl::Status Stage(const Program& program, const MicroBatch& batch);
  // Into `program`'s own memory, for work that is ordered on `lane` after the call.
  absl::Status Load(Program& program, Stream& lane);

 private:
  InputStaging(char* pinned, size_t label_begin) : pinned_(pinned), label_begin_(label_begin) {}

  char* const pinned_;        // inputs, then labels; memory_ as well
  const size_t label_begin_;  // where labels begin
  DeviceMemory memory_;
  std::unique_ptr<CopyQueue> in_;
  std::unique_ptr<Event> arrived_;  // behind the last Stage's copies
  std::unique_ptr<Event> taken_;    // behind the last Load's
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_STAGING_H_
