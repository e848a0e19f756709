// The monotonic clock, for durations, deadlines and silence.
#ifndef STARLING_COMMON_BASE_CLOCK_H_
#define STARLING_COMMON_BASE_CLOCK_H_

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace starling {

struct MonotonicAnchor {
  std::chrono::steady_clock::time_point steady = std::chrono::steady_clock::now();
  absl::Time time = absl::Now();
};

inline const MonotonicAnchor& ProcessAnchor() {
  static const MonotonicAnchor anchor;
  return anchor;
}

// CLOCK_MONOTONIC: never goes back and never jumps when the wall clock does. It does not advance
// while the machine sleeps, but does while the process is stopped. It starts at the wall time of
// its first use and means nothing in another process or after a restart; use absl::Now() for times
// that are shown to people or compared with other processes. Thread-safe.
inline absl::Time MonotonicNow() {
  const MonotonicAnchor& anchor = ProcessAnchor();
  return anchor.time + absl::FromChrono(std::chrono::steady_clock::now() - anchor.steady);
}

// A finite MonotonicNow time, for waits of the standard library.
inline std::chrono::steady_clock::time_point ToSteady(absl::Time time) {
  const MonotonicAnchor& anchor = ProcessAnchor();
  return anchor.steady + absl::ToChronoNanoseconds(time - anchor.time);
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_CLOCK_H_
