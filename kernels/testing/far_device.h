// A device like a GPU, for tests on machines without one: the CPU's operators, behind memory that the
// host cannot reach (touching it ends the process) and streams that run behind the host.
#ifndef STARLING_KERNELS_TESTING_FAR_DEVICE_H_
#define STARLING_KERNELS_TESTING_FAR_DEVICE_H_

#include <atomic>
#include <memory>

#include "kernels/device.h"

namespace starling {

// When what is ordered on a stream runs. What reads results, or changes what is read, too early gets
// other numbers than on `inner`.
enum class FarRuns {
  // Once somebody waits for it, and not before: in Synchronize, of a stream or an event, by the caller,
  // with what it waits for on other streams. One work at a time.
  kLate,
  // On a thread of the stream's, now and then a little later than it could: streams overtake each other
  // where no event keeps them from it. ThreadSanitizer sees what they share.
  kBeside,
};

// What streams captured, and what tests want of that. Arguments are frozen at the capture, so that one
// which should come from memory gives other numbers at the second launch; what must not be called in
// a capture ends the process.
struct FarCaptures {
  std::atomic<bool> possible{true};  // Device::captures()
  std::atomic<int> fail_at{-1};      // the capture with this number, from 0, fails
  std::atomic<int> begun{0};
  std::atomic<int> alive{0};     // captured work that is held
  std::atomic<int> launched{0};  // launches that have run
};

// Memory that is not this device's ends the process. `captures`, if not null, outlives the device.
std::unique_ptr<Device> MakeFarDevice(std::unique_ptr<Device> inner,
                                      FarRuns runs = FarRuns::kLate,
                                      FarCaptures* captures = nullptr);

}  // namespace starling

#endif  // STARLING_KERNELS_TESTING_FAR_DEVICE_H_
