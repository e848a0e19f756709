// A lane's program, ordered segment by segment: call by call, or as captured work. Private to the
// executor.
#ifndef STARLING_WORKER_EXECUTOR_LANE_PROGRAM_H_
#define STARLING_WORKER_EXECUTOR_LANE_PROGRAM_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/executor/graph_segments.h"
#include "worker/executor/program.h"

namespace starling {

// Whether lanes may capture: after the first failed capture none does. Thread-safe.
class CaptureSwitch {
 public:
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // The first call logs `why`.
  void TurnOff(const absl::Status& why);

 private:
  std::atomic<bool> on_{true};
};

// With capturing, a segment runs call by call the first time, when libraries load their code; is
// captured the second time; and is launched from then on. A failed capture is not retried:
// everything continues call by call. Used by one thread at a time.
class LaneProgram {
 public:
  // `segments` and `captures` outlive this. The program must be bound before the first call, with
  // StepValues if segments are captured.
  LaneProgram(std::unique_ptr<Program> program, const GraphSegments* segments,
              CaptureSwitch* captures);

  Program& program() { return *program_; }
  const Program& program() const { return *program_; }

  // Order a segment; always on the same stream. If segments are captured, StepValues must hold the
  // same `random` and `loss_scale` when the stream gets here.
  absl::Status Forward(size_t segment, const RandomKey& random, Stream& stream);
  // If segments are captured, includes what its steps need recomputed; otherwise the caller orders
  // that.
  absl::Status Backward(size_t segment, const RandomKey& random, double loss_scale, Stream& stream);

 private:
  struct Slot {
    bool ran = false;
    std::unique_ptr<Captured> captured;
  };

  // `calls` orders the slot's work, call by call.
  absl::Status Order(Slot& slot, Stream& stream, absl::FunctionRef<absl::Status()> calls);

  const std::unique_ptr<Program> program_;
  const GraphSegments* const segments_;
  CaptureSwitch* const captures_;
  std::vector<Slot> forward_, backward_;  // destroyed before the program
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_LANE_PROGRAM_H_
