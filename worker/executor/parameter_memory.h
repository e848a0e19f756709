// Parameters in host memory, where their owner writes them, and where the device reads them: the
// same memory, or a copy of it. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_PARAMETER_MEMORY_H_
#define STARLING_WORKER_EXECUTOR_PARAMETER_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/placement/layout.h"
#include "common/sync/mutex.h"
#include "kernels/device.h"
#include "worker/executor/copy_queue.h"
#include "worker/executor/device_memory.h"

namespace starling {

// Install is thread-safe; the rest is constant once allocated.
class ParameterMemory {
 public:
  ParameterMemory() = default;
  ~ParameterMemory();
  ParameterMemory(const ParameterMemory&) = delete;
  ParameterMemory& operator=(const ParameterMemory&) = delete;

  // Once; all zero. `device` and `spans` outlive this.
  absl::Status Allocate(Device* device, const Layout& layout, SpanRing* spans);

  float* host() const { return host_; }  // null before Allocate
  float* device() const { return memory_.as<float>(); }

  // Before a unit, and when its lanes have stopped: returns when no copy is under way, the first of
  // whose failures it says.
  void BeginUnit(Clock clock);
  absl::Status EndUnit();

  // The slice's elements are as they stay for now: makes them the device's values, for work that is
  // ordered on `lane` after the call. Each lane calls it, once in a unit; the first orders the
  // copy, and sets `*ready`. The host's are read until `lane` has passed the call.
  absl::Status Install(const Slice& slice, std::atomic<bool>* ready, Stream& lane);

 private:
  bool copies() const { return host_ != device(); }

  Device* owner_ = nullptr;
  DeviceMemory memory_;
  float* host_ = nullptr;  // memory_'s own, or a block of AllocateHost's

  // Where there are copies.
  Mutex mutex_;
  std::unique_ptr<CopyQueue> in_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Event>> arrived_;  // by slice
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_PARAMETER_MEMORY_H_
