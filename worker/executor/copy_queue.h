// A stream for copies that run beside the lanes' computation, and a thread that waits for each copy
// to complete. Private to the executor, for devices whose memory the host cannot access.
#ifndef STARLING_WORKER_EXECUTOR_COPY_QUEUE_H_
#define STARLING_WORKER_EXECUTOR_COPY_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/ids.h"
#include "common/protocol/types.h"
#include "common/sync/mutex.h"
#include "common/trace/span_ring.h"
#include "kernels/device.h"
#include "worker/executor/executor.h"

namespace starling {

// Used by one thread at a time, besides its own thread. Copies run in the order of the calls.
class CopyQueue {
 public:
  // A finished sum, and the sink to notify of it.
  struct Sum {
    GradientSink* sink = nullptr;
    size_t range = 0;
    SliceId slice;
    uint32_t samples = 0;
  };
  struct Block {
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
  };

  // `device` and `spans` outlive the queue.
  static absl::StatusOr<std::unique_ptr<CopyQueue>> Create(Device* device, SpanRing* spans);
  ~CopyQueue();  // call Drain first
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  // Must be called with no copy under way. The clock is for spans.
  void Begin(Clock clock) { clock_ = clock; }

  // Copies to the host once `lane` has run the work ordered on it so far; then the queue's thread
  // calls sum.sink->Ready. Returns the failure of an earlier call, after which no sum becomes
  // ready.
  absl::Status Out(const Block& block, Stream& lane, const Sum& sum);
  // Copies to the device once the mark of `free` was passed (null: at once), then sets that of
  // `arrived`. `name` and `slice` are for the span.
  absl::Status In(absl::Span<const Block> blocks, Event* free, Event& arrived, const char* name,
                  SliceId slice);

  // Makes later work on `lane` run after all copies so far.
  absl::Status MakeStreamWait(Stream& lane);
  // For setting marks after all copies so far.
  Stream& stream() { return *stream_; }

  // Returns when all copies have completed and Ready has returned for each successful one. Returns
  // the first failure since the last call.
  absl::Status Drain();

 private:
  struct Copy {
    Event* may_begin = nullptr;  // null: as soon as it was ordered
    Event* passed = nullptr;
    const char* name = nullptr;
    uint64_t ordered_us = 0;
    Sum sum;  // no sink: no notification
  };

  CopyQueue(Device* device, SpanRing* spans) : device_(device), spans_(spans) {}

  absl::Status Finish(Copy copy);
  absl::StatusOr<Event*> TakeEvent();
  void Run();
  // Waits for it; returns whether it succeeded.
  absl::Status See(const Copy& copy);

  Device* const device_;
  SpanRing* const spans_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> copied_;  // for MakeStreamWait
  Clock clock_ = 0;
  uint64_t last_us_ = 0;  // the thread's: when the last copy completed

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Event>> events_ ABSL_GUARDED_BY(mutex_);  // grows, never shrinks
  std::vector<Event*> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<Copy> ordered_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_COPY_QUEUE_H_
