// A stand-in for a GPU, for tests on machines without one: the CPU's operators, behind memory that
// the host cannot access (touching it ends the process) and streams that run asynchronously.
#ifndef STARLING_KERNELS_TESTING_FAKE_DISCRETE_DEVICE_H_
#define STARLING_KERNELS_TESTING_FAKE_DISCRETE_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace starling {

// When work ordered on a stream runs. Code that reads results, or changes inputs, too early gets
// other numbers than on `inner`.
enum class FarRuns {
  // Only when it is waited for: in Synchronize, of a stream or an event, on the caller's thread,
  // together with what it depends on in other streams. One piece of work at a time.
  kLate,
  // On the stream's own thread, now and then with a small delay: streams overtake each other unless
  // an event prevents it. ThreadSanitizer sees what they share.
  kBeside,
};

// What streams captured, and what tests demand of captures. Arguments are frozen at the capture, so
// one that should come from memory gives other numbers at the second launch. A call that a capture
// forbids ends the process.
struct FarCaptures {
  std::atomic<bool> possible{true};  // Device::captures()
  std::atomic<int> fail_at{-1};      // the capture of this number, counted from 0, fails
  // In the capture of this number the first call fails as if the device were lost, which it is not:
  // the way libraries may report a call that a capture does not accept.
  std::atomic<int> refuse_at{-1};
  std::atomic<int> begun{0};
  std::atomic<int> alive{0};     // captures that still exist
  std::atomic<int> launched{0};  // launches that have run
};

// Makes one of a fake discrete device's calls fail. Counts the calls of the device and of its
// operators, streams and events that return a status, in the order in which they come. Thread-safe.
class FarFault {
 public:
  // The `call`-th from now, counted from 1, returns kInternal and orders nothing; Synchronize still
  // waits. Later calls succeed.
  void FailAt(uint64_t call) { Set(call, /*loses=*/false); }
  // That call and all later ones return kUnavailable. Ordered work that has not run by then never
  // runs.
  void LoseAt(uint64_t call) { Set(call, /*loses=*/true); }
  // Whether that call has come.
  bool struck() const;

  // For the device: what its next call must return, and whether it is lost.
  absl::Status Call();
  bool lost() const;

 private:
  void Set(uint64_t call, bool loses);

  mutable std::mutex mutex_;
  uint64_t left_ = 0;  // calls up to the one that fails; 0: none will
  bool loses_ = false, struck_ = false;
};

struct FarOptions {
  FarRuns runs = FarRuns::kLate;
  size_t memory_bytes = 0;          // in all, in whole pages; 0: no limit
  std::shared_ptr<FarFault> fault;  // null: nothing fails
  FarCaptures* captures = nullptr;  // if not null, outlives the device
  // The device's clock, in nanoseconds; copyable, read by the threads of all streams. Null: the
  // host's monotonic clock.
  std::function<int64_t()> clock;
};

// Access to memory that is not this device's ends the process.
std::unique_ptr<Device> MakeFakeDiscreteDevice(std::unique_ptr<Device> inner,
                                               FarOptions options = {});

}  // namespace starling

#endif  // STARLING_KERNELS_TESTING_FAKE_DISCRETE_DEVICE_H_
