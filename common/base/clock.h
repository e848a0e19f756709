// The clock by which durations, deadlines and silence are measured.
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

// CLOCK_MONOTONIC: it never goes back and never jumps, whatever becomes of the wall clock. The time
// for which the machine sleeps does not pass on it; that for which the process is stopped does. It
// means nothing in another process or after a restart. It begins at the wall time of its first use,
// but what people are shown, and what is compared with other processes' times, is absl::Now().
// Thread-safe.
inline absl::Time MonotonicNow() {
  const MonotonicAnchor& anchor = ProcessAnchor();
  return anchor.time + absl::FromChrono(std::chrono::steady_clock::now() - anchor.steady);
}

// A finite time of MonotonicNow's, for waits of the standard library.
inline std::chrono::steady_clock::time_point ToSteady(absl::Time time) {
  const MonotonicAnchor& anchor = ProcessAnchor();
  return anchor.steady + absl::ToChronoNanoseconds(time - anchor.time);
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_CLOCK_H_
