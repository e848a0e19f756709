#include "worker/executor/lane_program.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "common/base/status_macros.h"

namespace starling {
namespace {

absl::StatusOr<std::unique_ptr<Captured>> Capture(Stream& stream,
                                                  absl::FunctionRef<absl::Status()> calls) {
  STARLING_RETURN_IF_ERROR(stream.BeginCapture());
  const absl::Status called = calls();
  absl::StatusOr<std::unique_ptr<Captured>> captured = stream.EndCapture();
  if (!called.ok()) return called;  // more specific than that the capture failed
  return captured;
}

}  // namespace

void CaptureSwitch::TurnOff(const absl::Status& why) {
  if (!on_.exchange(false)) return;
  spdlog::warn(
      "no CUDA graphs: a capture failed, so each kernel is launched by itself from here on ({})",
      why.ToString());
}

LaneProgram::LaneProgram(std::unique_ptr<Program> program, const GraphSegments* segments,
                         CaptureSwitch* captures)
    : program_(std::move(program)),
      segments_(segments),
      captures_(captures),
      forward_(segments->forward.size()),
      backward_(segments->backward.size()) {}

absl::Status LaneProgram::Forward(size_t segment, const RandomKey& random, Stream& stream) {
  const auto [begin, end] = segments_->forward[segment];
  return Order(forward_[segment], stream, [&, begin = begin, end = end]() -> absl::Status {
    for (int node = begin; node < end; ++node) {
      STARLING_RETURN_IF_ERROR(program_->Forward(node, random, stream));
    }
    return absl::OkStatus();
  });
}

absl::Status LaneProgram::Backward(size_t segment, const RandomKey& random, double loss_scale,
                                   Stream& stream) {
  const auto [begin, end] = segments_->backward[segment];
  return Order(backward_[segment], stream, [&, begin = begin, end = end]() -> absl::Status {
    for (int step = begin; step < end; ++step) {
      if (segments_->captured) {
        for (int node : program_->again(step)) {
          STARLING_RETURN_IF_ERROR(program_->ForwardAgain(node, random, stream));
        }
      }
      STARLING_RETURN_IF_ERROR(program_->Backward(step, loss_scale, stream));
    }
    return absl::OkStatus();
  });
}

absl::Status LaneProgram::Order(Slot& slot, Stream& stream,
                                absl::FunctionRef<absl::Status()> calls) {
  if (!segments_->captured || !captures_->on()) return calls();
  if (slot.captured != nullptr) return stream.Launch(*slot.captured);
  if (!slot.ran) {
    const absl::Status status = calls();
    slot.ran = status.ok();  // otherwise not all of it has run
    return status;
  }
  absl::StatusOr<std::unique_ptr<Captured>> captured = Capture(stream, calls);
  if (!captured.ok()) {
    // Libraries may report a call that a capture does not accept like a lost device. A device that
    // is really lost reports it again.
    const absl::Status status = calls();
    if (!absl::IsUnavailable(status)) captures_->TurnOff(captured.status());
    return status;
  }
  slot.captured = *std::move(captured);
  return stream.Launch(*slot.captured);
}

}  // namespace starling
