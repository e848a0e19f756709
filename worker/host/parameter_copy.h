// One of a job's two copies of the parameters: the values that units read, which version of each
// slice they have, and the units that read them.
#ifndef STARLING_WORKER_HOST_PARAMETER_COPY_H_
#define STARLING_WORKER_HOST_PARAMETER_COPY_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/placement/layout.h"
#include "common/protocol/ids.h"
#include "common/protocol/types.h"
#include "common/sync/mutex.h"
#include "common/transport/payload.h"
#include "worker/core/events.h"

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

// A slice's value as it came from its shard.
struct SliceValue {
  SliceId slice;
  Clock version = 0;
  int loss_scale_log2 = 0;  // fp16, kLossScaleSlice: of gradients computed from it
  ReceivedPayload payload;  // the slice's bytes
  SliceArrival arrival;
};

// A slice is overwritten only when no unit reads the older value. The session sees to that for the
// units that it wants. An abandoned unit stops soon, but not at once; until then values wait here,
// in order.
class ParameterCopy {
 public:
  // Told of each value when it is in the copy, on the thread that installs.
  using Installed = std::function<void(SliceId, Clock, absl::Span<const float>)>;

  // `layout` and `values` (layout.elements; null: a copy that is never used) outlive this.
  ParameterCopy(const Layout& layout, session::Params params, float* values,
                Installed installed = nullptr);

  // ---- Of one thread, the session's ----

  // The unit may read the copy from now on, until EndUnit.
  void BeginUnit(session::UnitId unit);
  // The unit is not wanted any more: it stops soon. No effect if it has stopped, or never began.
  void AbandonUnit(session::UnitId unit);
  // The unit reads nothing any more: what waited for it is installed.
  void EndUnit(session::UnitId unit);

  // Copies the value into its place, and lets those pass that wait for its version; or keeps it
  // until the abandoned units have stopped.
  void Install(SliceValue value);
  // What the copy holds is void, and so is what waits: no slice has a version.
  void Forget();

  // ---- Thread-safe ----

  // Blocks until the slice has `version` (a frozen slice of the live copy: 0, it never has
  // another); `*held_us`: HeldShare of that. False: cancelled. Says so when it takes long.
  bool Wait(SliceId slice, Clock version, uint64_t* held_us);
  // Whether Wait would return true at once.
  bool Has(SliceId slice, Clock version) const;
  // Of the value of kLossScaleSlice that is installed.
  int LossScaleLog2() const;

  // Between Cancel and Resume nothing blocks and Wait answers false.
  void Cancel();
  void Resume();

 private:
  struct Unit {
    session::UnitId id;
    bool abandoned = false;
  };
  struct Version {
    Clock version = -1;  // -1: none
    SliceArrival arrival;
    int loss_scale_log2 = 0;
  };

  bool AbandonedUnitReads() const;
  void Write(const SliceValue& value);
  Clock Wanted(SliceId slice, Clock version) const;

  const Layout& layout_;
  const session::Params params_;
  float* const values_;
  const Installed installed_;

  // The session's thread only.
  absl::InlinedVector<Unit, 4> units_;  // that may read
  std::vector<SliceValue> waiting_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Version> versions_ ABSL_GUARDED_BY(mutex_);  // by slice
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_PARAMETER_COPY_H_
