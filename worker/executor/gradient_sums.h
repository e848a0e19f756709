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

// Add is thread-safe; Begin is not, and needs that no Add runs.
//
// A sum that waits for its sibling lies in the sink's buffer of the slice or, where that is taken
// by another sum of the same range, in one of the spare flat buffers. Whoever finishes the second
// of two siblings adds; the last addition ends in the sink's buffer.
//
// Where the host does not reach device memory, no sum lies in the sink's buffer but the last, which
// is copied there by the lane's CopyQueue; and Add waits for nothing that it orders. What one lane
// adds to another's sum is ordered behind it by an event of the sum; a spare buffer is free as soon
// as the work that reads it is ordered, and whoever takes it orders its own behind that, by an
// event of the buffer.
class GradientSums {
 public:
  // How many flat buffers there are besides the sink's: a bound on the sums that wait at one time.
  // Of each pair of siblings one waits; and since lanes take micro-batches in order,
  // log2(micro_batches) for the finished ones and as many again around each one under way.
  // `in_sink`: whether one of them can wait in the sink's buffer.
  static size_t SpareBuffers(uint32_t micro_batches, int lanes, bool in_sink);

  static absl::StatusOr<std::unique_ptr<GradientSums>> Create(const Layout& layout,
                                                              uint32_t micro_batches, int lanes,
                                                              Device* device);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  // All that earlier units ordered has passed.
  absl::Status Begin(absl::Span<const WorkRange> ranges);

  // Adds micro-batch `leaf` of the range: `gradient` has the slice's elements, and must stay as it
  // is until `stream` and `out` have passed the call. `samples` counts those of the micro-batch.
  // When it was the last, sink.Ready is called: at once or, where there is an `out` (the host does
  // not reach device memory), by that. `waited_us` grows by the time spent in sink.Acquire, or in
  // waiting until another lane's was over. kCancelled: the sink gave no buffer. What the device
  // fails with leaves a sum of which nobody knows what it lacks: every later Add of the unit fails
  // with it.
  absl::Status Add(size_t range, uint32_t leaf, SliceId slice, const float* gradient,
                   uint32_t samples, GradientSink& sink, Stream& stream, CopyQueue* out,
                   uint64_t* waited_us);

 private:
  // The sum of one slice over one range.
  struct Slot {
    Mutex mutex;
    std::unique_ptr<SubtreeSum> sum ABSL_GUARDED_BY(mutex);
    std::vector<float*> where ABSL_GUARDED_BY(mutex);  // by buffer id - 1; nullptr: the lane's own
    // Spare buffers that nothing needs any more once the streams have passed what was ordered.
    std::vector<float*> done ABSL_GUARDED_BY(mutex);
    // Where the host does not reach device memory: behind what `last_lane` added. Null: nobody did.
    std::unique_ptr<Event> added ABSL_GUARDED_BY(mutex);
    Stream* last_lane ABSL_GUARDED_BY(mutex) = nullptr;
    float* pushed ABSL_GUARDED_BY(mutex) = nullptr;  // the sink's buffer
    uint32_t samples ABSL_GUARDED_BY(mutex) = 0;
    // When `pushed` was asked for, and when it came (SpanRing::NowMicros).
    uint64_t asked_us ABSL_GUARDED_BY(mutex) = 0;
    uint64_t got_us ABSL_GUARDED_BY(mutex) = 0;
  };

  GradientSums(const Layout& layout, Device* device)
      : layout_(layout), device_(device), in_sink_(device->host_reaches_memory()) {}

  // A flat buffer.
  struct Spare {
    float* memory = nullptr;
    // By slice: behind the last work that reads it. None where the host reaches device memory: that
    // has run when it is given back.
    std::vector<std::unique_ptr<Event>> read;
  };

  absl::Status AllocateSpare();
  // Add, once there is the sink's buffer (`first`: it came just now). Whether it holds the sum,
  // which the sink is to be told; by `out`, it is told already.
  absl::StatusOr<bool> Insert(Slot& slot, bool first, size_t range, uint32_t leaf, SliceId slice,
                              const float* gradient, GradientSink& sink, Stream& stream,
                              CopyQueue* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex);
  // Where a sum that must wait is to lie, for work on `stream`; `first` of its range and slice.
  absl::StatusOr<float*> PlaceFor(const Slot& slot, bool first, SliceId slice, Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex) {
    if (first && in_sink_) return slot.pushed;
    return TakeSpare(slice, stream);
  }
  // What comes next on `stream` runs behind what other lanes added to the slot; and theirs, that
  // comes later, behind what `stream` has so far.
  absl::Status FollowOthers(Slot& slot, Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex);
  absl::Status LeadOthers(Slot& slot, Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex);
  // What was ordered last reads `done` on this stream.
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
  const bool in_sink_;  // the device adds in the sink's buffers
  std::vector<Spare> spare_;
  std::vector<std::vector<std::unique_ptr<Slot>>>
      slots_;  // by range, then slice; grows, never shrinks

  Mutex mutex_;
  std::vector<std::vector<Spare*>> free_ ABSL_GUARDED_BY(mutex_);  // by slice: whose piece is free
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // of the unit's first Insert that failed
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_GRADIENT_SUMS_H_
