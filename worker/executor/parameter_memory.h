// Parameters in host memory, where their owner writes them, and where the device reads them: the same
// memory, or a copy of it. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_PARAMETER_MEMORY_H_
#define STARLING_WORKER_EXECUTOR_PARAMETER_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "common/sync/mutex.h"
#include "kernels/device.h"
#include "worker/executor/device_memory.h"

namespace starling {

// Install is thread-safe; the rest is constant once allocated.
class ParameterMemory {
 public:
  ParameterMemory() = default;
  ~ParameterMemory();
  ParameterMemory(const ParameterMemory&) = delete;
  ParameterMemory& operator=(const ParameterMemory&) = delete;

  // Once; all zero.
  absl::Status Allocate(Device* device, size_t bytes);

  float* host() const { return host_; }          // null before Allocate
  float* device() const { return memory_.as<float>(); }

  // `elements` from `begin` on are as they stay for now: makes them the device's values, for work
  // that is ordered after the call, on any stream. Nothing to do where `*ready`, which is set
  // behind it.
  absl::Status Install(size_t begin, size_t elements, std::atomic<bool>* ready);

 private:
  Device* owner_ = nullptr;
  DeviceMemory memory_;
  float* host_ = nullptr;  // memory_'s own, or a block of AllocateHost's

  Mutex mutex_;
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);  // copies run beside what lanes compute
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_PARAMETER_MEMORY_H_
