// Device memory that frees itself. For the executor and worker/inference.
#ifndef STARLING_WORKER_EXECUTOR_DEVICE_MEMORY_H_
#define STARLING_WORKER_EXECUTOR_DEVICE_MEMORY_H_

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "kernels/device.h"

namespace starling {

class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    if (memory_ != nullptr) device_->Free(memory_);
  }

  // Called once. Clears the memory, so that its pages exist before the first step.
  absl::Status Allocate(Device* device, size_t bytes, Stream& stream) {
    device_ = device;
    bytes_ = bytes;
    STARLING_ASSIGN_OR_RETURN(memory_, device->Allocate(std::max<size_t>(bytes, 1)));
    return device->Zero(memory_, bytes, stream);
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_DEVICE_MEMORY_H_
