// Replays computation as timed waits: real threads, real pushes of real size, no arithmetic. For
// tests and benches that need the timing of many lanes but have few CPUs.
#ifndef STARLING_WORKER_EXECUTOR_REPLAY_H_
#define STARLING_WORKER_EXECUTOR_REPLAY_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace starling {

// How long a micro-batch of any size takes; may be 0.
struct ReplayedCompute {
  absl::Duration forward;
  absl::Duration backward;
};

// "0.02s,0.04s": forward and backward. kInvalidArgument says what was expected and what came.
absl::StatusOr<ReplayedCompute> ParseReplayedCompute(const std::string& text);

// The waits of one thread. If one overruns, the next ones are shortened, so that many short waits
// add up to the requested time.
class ReplayWait {
 public:
  // Sleeps. `stopped` is polled at the end and every 20 ms; if it returns true, the wait ends and
  // returns false.
  bool For(absl::Duration time, absl::FunctionRef<bool()> stopped);

 private:
  absl::Duration late_;
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_REPLAY_H_
