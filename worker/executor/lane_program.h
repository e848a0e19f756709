// A lane's program, ordered segment by segment: call by call, or as work that was captured once.
// Private to the executor.
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

// Whether lanes go on capturing: none does any more, once one has failed. Thread-safe.
class CaptureSwitch {
 public:
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // The first call says so in the log.
  void TurnOff(const absl::Status& why);

 private:
  std::atomic<bool> on_{true};
};

// Where segments are captured, each runs call by call when it is first ordered, which is when
// libraries load their code; is captured the second time; and launched from then on. A capture that
// fails is not tried again: all goes on call by call. Used by one thread at a time.
class LaneProgram {
 public:
  // `segments` and `captures` outlive this. The program is bound before the first call, with
  // StepValues, if segments are captured.
  LaneProgram(std::unique_ptr<Program> program, const GraphSegments* segments,
              CaptureSwitch* captures);

  Program& program() { return *program_; }
  const Program& program() const { return *program_; }

  // Order a segment; always on the same stream. Where segments are captured, `random` and
  // `loss_scale` are also what the StepValues hold when the stream comes here.
  absl::Status Forward(size_t segment, const RandomKey& random, Stream& stream);
  // Where segments are captured, with what its steps need computed again; else that is the
  // caller's to order.
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
  std::vector<Slot> forward_, backward_;  // gone before the program
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_LANE_PROGRAM_H_
