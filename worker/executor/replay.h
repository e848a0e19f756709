// Computing replayed as timed waits: real threads, real pushes of real size, no arithmetic. For
// tests and benches, which need the time of many lanes and have few processors.
#ifndef STARLING_WORKER_EXECUTOR_REPLAY_H_
#define STARLING_WORKER_EXECUTOR_REPLAY_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace starling {

// How long a micro-batch of any size takes; 0 is allowed.
struct ReplayedCompute {
  absl::Duration forward;
  absl::Duration backward;
};

// "0.02s,0.04s": forward and backward. kInvalidArgument says what was expected and what came.
absl::StatusOr<ReplayedCompute> ParseReplayedCompute(const std::string& text);

// The waits of one thread. What one takes too long, the next ones are shorter by, so that many
// short ones are as long as they say.
class ReplayWait {
 public:
  // Sleeps. `stopped` is asked at the end and every 20 ms; true ends the wait, and returns false.
  bool For(absl::Duration time, absl::FunctionRef<bool()> stopped);

 private:
  absl::Duration late_;
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_REPLAY_H_
