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
#include "worker/executor/executor.h"

namespace starling {

// Add is thread-safe; Begin is not, and needs that no Add runs.
//
// A sum that waits for its sibling lies in the sink's buffer of the slice or, where that is taken
// by another sum of the same range, in one of the spare flat buffers. Whoever finishes the second
// of two siblings adds; the last addition ends in the sink's buffer. Where the host does not reach
// device memory, no sum lies in the sink's buffer but the last, which is copied there.
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

  void Begin(absl::Span<const WorkRange> ranges);

  // Adds micro-batch `leaf` of the range: `gradient` has the slice's elements. `samples` counts
  // those of the micro-batch. Calls sink.Ready when it was the last. `waited_us` grows by the time
  // spent in sink.Acquire, or in waiting until another lane's was over. kCancelled: the sink gave no buffer.
  absl::Status Add(size_t range, uint32_t leaf, SliceId slice, const float* gradient,
                   uint32_t samples, GradientSink& sink, Stream& stream, uint64_t* waited_us);

 private:
  // The sum of one slice over one range.
  struct Slot {
    Mutex mutex;
    std::unique_ptr<SubtreeSum> sum ABSL_GUARDED_BY(mutex);
    std::vector<float*> where ABSL_GUARDED_BY(mutex);  // by buffer id - 1; nullptr: the lane's own
    // Spare buffers that nothing needs any more once the stream has passed what was ordered.
    std::vector<float*> done ABSL_GUARDED_BY(mutex);
    float* pushed ABSL_GUARDED_BY(mutex) = nullptr;    // the sink's buffer
    uint32_t samples ABSL_GUARDED_BY(mutex) = 0;
    // When `pushed` was asked for, and when it came (SpanRing::NowMicros).
    uint64_t asked_us ABSL_GUARDED_BY(mutex) = 0;
    uint64_t got_us ABSL_GUARDED_BY(mutex) = 0;
  };

  GradientSums(const Layout& layout, Device* device)
      : layout_(layout), device_(device), in_sink_(device->host_reaches_memory()) {}

  // Where a sum that must wait is to lie; `first` of its range and slice.
  float* PlaceFor(const Slot& slot, bool first, SliceId slice)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex) {
    return first && in_sink_ ? slot.pushed : TakeSpare(slice);
  }
  // The range's sum into the sink's buffer, where it is not there already.
  absl::Status Deliver(Slot& slot, float* sum, const float* gradient, SliceId slice, Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex);
  absl::Status Merge(Slot& slot, const SubtreeSum::Merge& merge, SliceId slice,
                     const float* gradient, Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(slot.mutex);
  float* TakeSpare(SliceId slice);
  void GiveBackSpare(SliceId slice, float* buffer);
  uint32_t elements(SliceId slice) const { return layout_.slices[slice.value].elements; }

  const Layout& layout_;
  Device* const device_;
  const bool in_sink_;  // the device adds in the sink's buffers
  std::vector<float*> spare_;  // flat buffers
  std::vector<std::vector<std::unique_ptr<Slot>>>
      slots_;  // by range, then slice; grows, never shrinks

  Mutex mutex_;
  std::vector<std::vector<float*>> free_ ABSL_GUARDED_BY(mutex_);  // by slice: pieces of spare_
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_GRADIENT_SUMS_H_
