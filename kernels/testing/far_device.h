// A device like a GPU, for tests on machines without one: the CPU's operators, behind memory that the
// host cannot reach (touching it ends the process) and streams that run nothing before they must.
#ifndef STARLING_KERNELS_TESTING_FAR_DEVICE_H_
#define STARLING_KERNELS_TESTING_FAR_DEVICE_H_

#include <memory>

#include "kernels/device.h"

namespace starling {

// What is ordered on a stream runs in Synchronize: what reads results, or changes what is read, too
// early gets other numbers than on `inner`. Memory that is not this device's ends the process.
std::unique_ptr<Device> MakeFarDevice(std::unique_ptr<Device> inner);

}  // namespace starling

#endif  // STARLING_KERNELS_TESTING_FAR_DEVICE_H_
