#include "kernels/device.h"

namespace starling {
namespace {

absl::Status CapturesNothing() {
  return absl::UnimplementedError("this device captures no work: every call is launched by itself");
}

absl::Status TimesNothing() {
  return absl::UnimplementedError(
      "this device has no clock of its own: the host's is right for it");
}

}  // namespace

absl::Status Stream::BeginCapture() { return CapturesNothing(); }
absl::StatusOr<std::unique_ptr<Captured>> Stream::EndCapture() { return CapturesNothing(); }
absl::Status Stream::Launch(Captured&) { return CapturesNothing(); }

absl::StatusOr<std::unique_ptr<Event>> Device::CreateTimedEvent() { return TimesNothing(); }
absl::StatusOr<double> Device::MicrosBetween(Event&, Event&) { return TimesNothing(); }

absl::Status Device::SetStepValues(StepValues*, const StepValues&, Stream&) {
  return CapturesNothing();
}

}  // namespace starling
