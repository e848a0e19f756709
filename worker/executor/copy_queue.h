// A stream for copies beside what lanes compute, and a thread that sees each of them through.
// Private to the executor, on devices whose memory the host does not reach.
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

// Used by one thread at a time, beside its own. Copies pass in the order of the calls.
class CopyQueue {
 public:
  // A finished sum, for whom it is to be told of.
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
  ~CopyQueue();  // after Drain
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  // Nothing is under way. The clock is for spans.
  void Begin(Clock clock) { clock_ = clock; }

  // To the host, once `lane` has run what was ordered on it so far; then, on the queue's thread,
  // sum.sink->Ready. What the calls ordered before failed with: nothing is ready any more.
  absl::Status Out(const Block& block, Stream& lane, const Sum& sum);
  // To the device, once the mark of `free` was passed (null: at once), and sets that of `arrived`.
  // `name` and `slice` are for the span.
  absl::Status In(absl::Span<const Block> blocks, Event* free, Event& arrived, const char* name,
                  SliceId slice);

  // What comes next on `lane` runs behind all copies so far.
  absl::Status MakeStreamWait(Stream& lane);
  // To set marks behind all copies so far.
  Stream& stream() { return *stream_; }

  // Returns when all copies have passed, and Ready has returned for those that could be told. The
  // first failure since the last call.
  absl::Status Drain();

 private:
  struct Copy {
    Event* may_begin = nullptr;  // null: as soon as it was ordered
    Event* passed = nullptr;
    const char* name = nullptr;
    uint64_t ordered_us = 0;
    Sum sum;  // no sink: nobody is told
  };

  CopyQueue(Device* device, SpanRing* spans) : device_(device), spans_(spans) {}

  absl::Status Finish(Copy copy);
  absl::StatusOr<Event*> TakeEvent();
  void Run();
  // Waits for it; says whether it passed.
  absl::Status See(const Copy& copy);

  Device* const device_;
  SpanRing* const spans_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> copied_;  // of MakeStreamWait
  Clock clock_ = 0;
  uint64_t last_us_ = 0;  // the thread's: when the last copy had passed

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Event>> events_ ABSL_GUARDED_BY(mutex_);  // the most ever needed
  std::vector<Event*> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<Copy> ordered_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_COPY_QUEUE_H_
