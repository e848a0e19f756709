// A device like a GPU, for tests on machines without one: the CPU's operators, behind memory that the
// host cannot reach (touching it ends the process) and streams that run behind the host.
#ifndef STARLING_KERNELS_TESTING_FAR_DEVICE_H_
#define STARLING_KERNELS_TESTING_FAR_DEVICE_H_

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

// Memory that is not this device's ends the process.
std::unique_ptr<Device> MakeFarDevice(std::unique_ptr<Device> inner,
                                      FarRuns runs = FarRuns::kLate);

}  // namespace starling

#endif  // STARLING_KERNELS_TESTING_FAR_DEVICE_H_
