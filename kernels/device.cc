#include "kernels/device.h"

namespace starling {
namespace {

absl::Status CapturesNothing() {
  return absl::UnimplementedError("this device captures no work: every call is launched by itself");
}

}  // namespace

absl::Status Stream::BeginCapture() { return CapturesNothing(); }
absl::StatusOr<std::unique_ptr<Captured>> Stream::EndCapture() { return CapturesNothing(); }
absl::Status Stream::Launch(Captured&) { return CapturesNothing(); }

absl::Status Device::SetStepValues(StepValues*, const StepValues&, Stream&) {
  return CapturesNothing();
}

}  // namespace starling
