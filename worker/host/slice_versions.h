// Which version of each slice lies in a parameter buffer, and the gate that computing waits at.
#ifndef STARLING_WORKER_HOST_SLICE_VERSIONS_H_
#define STARLING_WORKER_HOST_SLICE_VERSIONS_H_

#include <cstdint>
#include <vector>

#include "common/protocol/ids.h"
#include "common/protocol/types.h"
#include "common/sync/mutex.h"

namespace starling {

// How a value came, in microseconds of SpanRing's clock.
struct SliceArrival {
  uint64_t asked_us = 0;  // the pull was sent
  uint64_t arrived_us = 0;
  uint64_t held_us = 0;  // between the two the shard held the pull back for so long
};

// For how much of the wait [begin_us, end_us) the shard held the value back. When it did so is not
// known: the ways there and back are taken to be equally long.
uint64_t HeldShare(uint64_t begin_us, uint64_t end_us, const SliceArrival& arrival);

// Thread-safe.
class SliceVersions {
 public:
  explicit SliceVersions(size_t slices) : slices_(slices) {}

  // The slice's bytes in the buffer are complete and have this version.
  // `loss_scale_log2`: of gradients computed from it (fp16, kLossScaleSlice).
  void Set(SliceId slice, Clock version, const SliceArrival& arrival = {}, int loss_scale_log2 = 0);

  // As it was Set with the slice's version.
  int LossScaleLog2(SliceId slice);

  // What the buffer holds is void: no slice has a version.
  void Forget();

  // Blocks until the slice has `version`; `*held_us`: HeldShare of that. False: cancelled. Says so
  // when it takes long.
  bool Wait(SliceId slice, Clock version, uint64_t* held_us);

  // Between Cancel and Resume nothing blocks and Wait answers false.
  void Cancel();
  void Resume();

 private:
  struct OfSlice {
    Clock version = -1;  // -1: none
    SliceArrival arrival;
    int loss_scale_log2 = 0;
  };
  Mutex mutex_;
  CondVar changed_;
  std::vector<OfSlice> slices_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_SLICE_VERSIONS_H_
