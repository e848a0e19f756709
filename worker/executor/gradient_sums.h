// Sums the gradients of a unit's micro-batches, per range and slice, along the tree of the ids.
// Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_GRADIENT_SUMS_H_
#define STARLING_WORKER_EXECUTOR_GRADIENT_SUMS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/placement/layout.h"
#include "common/reduce/subtree_sum.h"
#include "common/sync/mutex.h"
#include "kernels/device.h"
#include "worker/executor/copy_queue.h"
#include "worker/executor/executor.h"

namespace starling {

// Add is thread-safe; Begin is not, and must not run concurrently with Add.
//
// A sum that waits for its sibling lies in the sink's buffer of the slice or, if another sum of the
// same range occupies that, in one of the spare flat buffers. The lane that completes the second of
// two siblings adds them; the last addition ends in the sink's buffer.
//
// If the host cannot access device memory, only the final sum reaches the sink's buffer, copied by
// the lane's CopyQueue, and Add does not wait for the work that it orders. A lane's addition to
// another lane's sum is ordered after it by the sum's event. A spare buffer is free as soon as the
// work that reads it is ordered; the lane that takes it next orders its work after that, by the
// buffer's event.
class GradientSums {
 public:
  // The number of flat buffers besides the sink's: an upper bound on the sums that wait
  // concurrently. One of each pair of siblings waits; since lanes take micro-batches in order, that
  // is log2(micro_batches) for the finished ones and as many again around each one under way.
  // `in_sink`: whether one of them can wait in the sink's buffer.
  static size_t SpareBuffers(uint32_t micro_batches, int lanes, bool in_sink);

  static absl::StatusOr<std::unique_ptr<GradientSums>> Create(const Layout& layout,
                                                              uint32_t micro_batches, int lanes,
                                                              Device* device);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  // All work ordered by earlier units must have run.
  absl::Status Begin(absl::Span<const WorkRange> ranges);

  // Adds micro-batch `leaf` of the range. `gradient` has the slice's elements and must not change
  // until `stream` and `out` have passed the call. `samples` counts those of the micro-batch. After
  // the last addition sink.Ready is called: at once or, if there is an `out` (the host cannot
  // access device memory), by `out`. `waited_us` grows by the time spent in sink.Acquire, or in
  // waiting for another lane's Acquire. kCancelled: the sink returned no buffer. After a device
  // error the sum is undefined; every later Add of the unit returns that error.
  absl::Status Add(size_t range, uint32_t leaf, SliceId slice, const float* gradient,
                   uint32_t samples, GradientSink& sink, Stream& stream, CopyQueue* out,
                   uint64_t* waited_us);

 private:
  // The sum of one slice over one range.
  struct Slot {
    Mutex mutex;
    std::unique_ptr<SubtreeSum> sum ABSL_GUARDED_BY(mutex);
    std::vector<float*> where ABSL_GUARDED_BY(mutex);  // by buffer id - 1; nullptr: the lane's own
    // Spare buffers that are free once the streams have passed the ordered work.
    std::vector<float*> done ABSL_GUARDED_BY(mutex);
    // If the host cannot access device memory: set after what `last_lane` added. Null: nothing was
    // added.
    std::unique_ptr<Event> added ABSL_GUARDED_BY(mutex);
    Stream* last_lane ABSL_GUARDED_BY(mutex) = nullptr;
    float* pushed ABSL_GUARDED_BY(mutex) = nullptr;  // the sink's buffer
    uint32_t samples ABSL_GUARDED_BY(mutex) = 0;
    // When `pushed` was requested, and when it came (SpanRing::NowMicros).
    uint64_t asked_us ABSL_GUARDED_BY(mutex) = 0;
    uint64_t got_us ABSL_GUARDED_BY(mutex) = 0;
  };

  GradientSums(const Layout& layout, Device* device)
      : layout_(layout), device_(device), in_sink_(device->host_reaches_memory()) {}

  // A flat buffer.
  struct Spare {
    float* memory = nullptr;
    // By slice: set after the last work that reads it. Empty if the host can access device memory:
    // that work has run when the buffer is given back.
    std::vector<std::unique_ptr<Event>> read;
  };

  absl::Status AllocateSpare();
  // The part of Add that has the sink's buffer (`first`: it has just come). Returns whether the
  // buffer holds the final sum, of which the caller must notify the sink; with `out` that is
  // already arranged.
  absl::StatusOr<bool> Insert(Slot& slot, bool first, size_t range, uint32_t leaf, SliceId slice,
                              const float* gradient, GradientSink& sink, Stream& stream,
                              CopyQueue* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex);
  // Where a waiting sum goes, for work on `stream`; `first` of its range and slice.
  absl::StatusOr<float*> PlaceFor(const Slot& slot, bool first, SliceId slice, Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex) {
    if (first && in_sink_) return slot.pushed;
    return TakeSpare(slice, stream);
  }
  // Orders later work on `stream` after what other lanes added to the slot, and their later work
  // after what `stream` has so far.
  absl::Status FollowOthers(Slot& slot, Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex);
  absl::Status LeadOthers(Slot& slot, Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex);
  // Gives back `done`, which only the work ordered last on this stream still reads.
  absl::Status GiveBackDone(Slot& slot, SliceId slice, Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex);
  absl::Status Merge(Slot& slot, const SubtreeSum::Merge& merge, SliceId slice,
                     const float* gradient, Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex);
  absl::StatusOr<float*> TakeSpare(SliceId slice, Stream& stream);
  size_t bytes(SliceId slice) const { return elements(slice) * sizeof(float); }
  uint32_t elements(SliceId slice) const { return layout_.slices[slice.value].elements; }
  float* PieceOf(const Spare& spare, SliceId slice) const {
    return spare.memory + layout_.slices[slice.value].flat_begin;
  }

  const Layout& layout_;
  Device* const device_;
  const bool in_sink_;  // the device adds directly in the sink's buffers
  std::vector<Spare> spare_;
  std::vector<std::vector<std::unique_ptr<Slot>>>
      slots_;  // by range, then slice; grows, never shrinks

  Mutex mutex_;
  std::vector<std::vector<Spare*>> free_ ABSL_GUARDED_BY(mutex_);  // by slice
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);                   // the unit's first failed Insert
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_GRADIENT_SUMS_H_
