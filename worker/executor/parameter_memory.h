// Parameters in host memory, where their owner writes them, and in the memory that the device
// reads: the same memory or a copy. Private to the executor.
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

  // Called once; clears the memory. `device` and `spans` outlive this.
  absl::Status Allocate(Device* device, const Layout& layout, SpanRing* spans);

  float* host() const { return host_; }  // null before Allocate
  float* device() const { return memory_.as<float>(); }

  // Call before a unit, and when its lanes have stopped. Returns when no copy is under way, with
  // the first failure of those that were.
  void BeginUnit(Clock clock);
  absl::Status EndUnit();

  // Makes the slice's current elements the device's values, for work ordered on `lane` after the
  // call; they must not change until `lane` has passed it. Each lane calls this once per unit; the
  // first call orders the copy and sets `*ready`.
  absl::Status Install(const Slice& slice, std::atomic<bool>* ready, Stream& lane);

 private:
  bool copies() const { return host_ != device(); }

  Device* owner_ = nullptr;
  DeviceMemory memory_;
  float* host_ = nullptr;  // memory_'s own, or a block from AllocateHost

  // Used only with copies.
  Mutex mutex_;
  std::unique_ptr<CopyQueue> in_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Event>> arrived_;  // by slice
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_PARAMETER_MEMORY_H_
