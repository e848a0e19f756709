// One of a job's two copies of the parameters: the values, the version of each slice, and the units
// that read them.
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

// The times of a value's arrival, in microseconds of SpanRing's clock.
struct SliceArrival {
  uint64_t asked_us = 0;  // when the pull was sent
  uint64_t arrived_us = 0;
  uint64_t held_us = 0;  // how long the shard held the pull back in between
};

// How much of the wait [begin_us, end_us) the shard held the value back. The time of the hold is
// unknown, so both directions are assumed to take equally long.
uint64_t HeldShare(uint64_t begin_us, uint64_t end_us, const SliceArrival& arrival);

// A slice's value from its shard.
struct SliceValue {
  SliceId slice;
  Clock version = 0;
  int loss_scale_log2 = 0;  // fp16, kLossScaleSlice: for gradients computed from it
  ReceivedPayload payload;  // the slice's bytes
  SliceArrival arrival;
};

// A slice is overwritten only when no unit reads the older value. The session ensures this for
// wanted units. An abandoned unit stops soon but not at once. Until then values wait here, in
// order.
class ParameterCopy {
 public:
  // Called for each value after it is installed, on the installing thread.
  using Installed = std::function<void(SliceId, Clock, absl::Span<const float>)>;

  // `layout` and `values` (layout.elements; null: a copy that is never used) outlive this.
  ParameterCopy(const Layout& layout, session::Params params, float* values,
                Installed installed = nullptr);

  // ---- On the session's thread ----

  // The unit may read the copy until EndUnit.
  void BeginUnit(session::UnitId unit);
  // The unit is not wanted any more and stops soon. No effect if it has stopped or never began.
  void AbandonUnit(session::UnitId unit);
  // The unit reads nothing any more. Installs the values that waited for it.
  void EndUnit(session::UnitId unit);

  // Copies the value to its place and wakes waits for its version, or keeps it until the abandoned
  // units have stopped.
  void Install(SliceValue value);
  // All values are void, including waiting ones: no slice has a version.
  void Forget();

  // ---- Thread-safe ----

  // Blocks until the slice has `version` (for a frozen slice of the live copy: 0, its only
  // version). `*held_us`: HeldShare of the wait. False: cancelled. Logs long waits.
  bool Wait(SliceId slice, Clock version, uint64_t* held_us);
  // Whether Wait would return true at once.
  bool Has(SliceId slice, Clock version) const;
  // For the installed value of kLossScaleSlice.
  int LossScaleLog2() const;

  // Between Cancel and Resume, Wait does not block and returns false.
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
  absl::InlinedVector<Unit, 4> units_;  // units that may read
  std::vector<SliceValue> waiting_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Version> versions_ ABSL_GUARDED_BY(mutex_);  // by slice
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_PARAMETER_COPY_H_
