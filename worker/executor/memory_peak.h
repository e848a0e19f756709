// How much of a device's memory a job uses, according to the device. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_MEMORY_PEAK_H_
#define STARLING_WORKER_EXECUTOR_MEMORY_PEAK_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/trace/span_ring.h"
#include "kernels/device.h"

namespace starling {

// Samples now and then: memory taken and released between samples is missed, and other processes'
// memory is included. Begin and Sample are called by one thread at a time; bytes() by any.
class MemoryPeak {
 public:
  // Starts measuring. `device` outlives this. If the host can access its memory, that is the
  // process's own and nothing is measured.
  absl::Status Begin(Device* device) {
    if (device->host_reaches_memory()) return absl::OkStatus();
    STARLING_ASSIGN_OR_RETURN(const MemoryBytes memory, device->Memory());
    before_ = memory.available;
    device_ = device;
    return absl::OkStatus();
  }

  // Cheap enough for each unit: queries the device in the first ones, when libraries load their
  // code and work is captured, and then once a second.
  absl::Status Sample() {
    if (device_ == nullptr) return absl::OkStatus();
    const uint64_t now_us = SpanRing::NowMicros();
    if (looks_ >= kFirstLooks && now_us - last_us_ < 1'000'000) return absl::OkStatus();
    ++looks_;
    last_us_ = now_us;
    STARLING_ASSIGN_OR_RETURN(const MemoryBytes memory, device_->Memory());
    if (memory.available < before_) {
      bytes_ = std::max<size_t>(bytes_, before_ - memory.available);
    }
    return absl::OkStatus();
  }

  // The most that was used since Begin; 0: not measured.
  size_t bytes() const { return bytes_; }

 private:
  static constexpr int kFirstLooks = 8;

  Device* device_ = nullptr;
  size_t before_ = 0;
  int looks_ = 0;
  uint64_t last_us_ = 0;
  std::atomic<size_t> bytes_{0};
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_MEMORY_PEAK_H_
