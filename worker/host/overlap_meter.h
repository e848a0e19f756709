// Measures how much communication was hidden behind computation: 1 - (time that compute waited for
// slices or acks) / (time that any push or pull was in flight while a unit was computed).
#ifndef STARLING_WORKER_HOST_OVERLAP_METER_H_
#define STARLING_WORKER_HOST_OVERLAP_METER_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace starling {

// Not thread-safe. The caller passes the time, which never goes back. Covers the last `window`,
// except for up to 1/64 of it.
class OverlapMeter {
 public:
  explicit OverlapMeter(absl::Duration window);

  // From now on, some push or pull is in flight, or none is.
  void InFlight(bool any, absl::Time now);

  void UnitBegan(absl::Time now);
  // `waited`: time that compute waited for slices or acks, averaged over lanes.
  void UnitEnded(absl::Duration waited, uint64_t samples, absl::Time now);

  // In [0, 1]; 0 if nothing was in flight.
  double hidden_share(absl::Time now);
  double samples_per_second(absl::Time now);

 private:
  static constexpr int kRecordsMax = 64;
  // Units that ended within 1/64 of the window.
  struct UnitRecord {
    absl::Time end;  // of the first
    absl::Duration under_way;
    absl::Duration waited;
    uint64_t samples = 0;
  };
  void Advance(absl::Time now);
  void Expire(absl::Time now);

  const absl::Duration window_;
  bool in_flight_ = false;
  bool computing_ = false;
  absl::Time last_ = absl::InfinitePast();
  absl::Time first_ = absl::InfinitePast();  // when the first unit began
  absl::Duration under_way_;                 // time in flight within the current unit
  std::vector<UnitRecord> units_;            // ascending
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_OVERLAP_METER_H_
