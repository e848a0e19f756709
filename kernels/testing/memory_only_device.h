// A device that can be asked for memory at most; all that computes or copies is kUnimplemented.
#ifndef STARLING_KERNELS_TESTING_MEMORY_ONLY_DEVICE_H_
#define STARLING_KERNELS_TESTING_MEMORY_ONLY_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace starling {

// A test overrides what it is about.
class MemoryOnlyDevice : public Device {
 public:
  std::string instruction_set() const override { return "none"; }
  absl::StatusOr<MemoryBytes> Memory() override { return absl::UnimplementedError(""); }
  absl::StatusOr<void*> Allocate(size_t) override { return absl::UnimplementedError(""); }
  void Free(void*) override {}
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return absl::UnimplementedError("");
  }
  absl::Status CopyToDevice(void*, const void*, size_t, Stream&) override {
    return absl::UnimplementedError("");
  }
  absl::Status CopyFromDevice(void*, const void*, size_t, Stream&) override {
    return absl::UnimplementedError("");
  }
  absl::Status Copy(void*, const void*, size_t, Stream&) override {
    return absl::UnimplementedError("");
  }
  absl::Status Zero(void*, size_t, Stream&) override { return absl::UnimplementedError(""); }
  absl::Status CountCorrect(const Judgement&, const void*, const void*, uint32_t*,
                            Stream&) override {
    return absl::UnimplementedError("");
  }
  absl::Status Add(float*, const float*, size_t, Stream&) override {
    return absl::UnimplementedError("");
  }
  DataType TypeOf(ValueFormat) const override { return DataType::kFp32; }
  absl::Status AddValues(void*, const void*, size_t, ValueFormat, Stream&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::unique_ptr<OperatorKernel>> CreateOperator(const OperatorSpec&) override {
    return absl::UnimplementedError("");
  }
};

}  // namespace starling

#endif  // STARLING_KERNELS_TESTING_MEMORY_ONLY_DEVICE_H_
