// A device like a GPU, for tests on machines without one: the CPU's operators, behind memory that
// the host cannot reach (touching it ends the process) and streams that run behind the host.
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

// When what is ordered on a stream runs. What reads results, or changes what is read, too early
// gets other numbers than on `inner`.
enum class FarRuns {
  // Once somebody waits for it, and not before: in Synchronize, of a stream or an event, by the
  // caller, with what it waits for on other streams. One work at a time.
  kLate,
  // On a thread of the stream's, now and then a little later than it could: streams overtake each
  // other where no event keeps them from it. ThreadSanitizer sees what they share.
  kBeside,
};

// What streams captured, and what tests want of that. Arguments are frozen at the capture, so that
// one which should come from memory gives other numbers at the second launch; what must not be
// called in a capture ends the process.
struct FarCaptures {
  std::atomic<bool> possible{true};  // Device::captures()
  std::atomic<int> fail_at{-1};      // the capture with this number, from 0, fails
  // In the capture with this number the first call fails as if the device were lost, which it is
  // not: as libraries may say of a call that a capture does not take.
  std::atomic<int> refuse_at{-1};
  std::atomic<int> begun{0};
  std::atomic<int> alive{0};     // captured work that is held
  std::atomic<int> launched{0};  // launches that have run
};

// One of a far device's calls, as a test wants it to fail: of those of the device and of its
// operators, streams and events that return a status, in the order in which they come. Thread-safe.
class FarFault {
 public:
  // The `call`-th from now, counted from 1: kInternal, and it does and orders nothing; but
  // Synchronize waits all the same. Those behind it pass.
  void FailAt(uint64_t call) { Set(call, /*loses=*/false); }
  // It and all behind it: kUnavailable. What was ordered, but has not run by then, never runs.
  void LoseAt(uint64_t call) { Set(call, /*loses=*/true); }
  // That call has come.
  bool struck() const;

  // The device's own: what its next call is to return, and whether it is lost.
  absl::Status Call();
  bool lost() const;

 private:
  void Set(uint64_t call, bool loses);

  mutable std::mutex mutex_;
  uint64_t left_ = 0;  // calls up to the one that fails; 0: none does, or it has come
  bool loses_ = false, struck_ = false;
};

struct FarOptions {
  FarRuns runs = FarRuns::kLate;
  size_t memory_bytes = 0;          // in all, in whole pages; 0: as much as there is
  std::shared_ptr<FarFault> fault;  // null: nothing fails
  FarCaptures* captures = nullptr;  // if not null, outlives the device
  // The device's own clock, in nanoseconds, which may be copied, and read by the threads of all
  // streams; null: the host's steady one.
  std::function<int64_t()> clock;
};

// Memory that is not this device's ends the process.
std::unique_ptr<Device> MakeFakeDiscreteDevice(std::unique_ptr<Device> inner,
                                               FarOptions options = {});

}  // namespace starling

#endif  // STARLING_KERNELS_TESTING_FAKE_DISCRETE_DEVICE_H_
