#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/far_device.h"
#include "worker/executor/testing/harness.h"

namespace starling {

std::unique_ptr<Device> MakeTestDevice() { return MakeFarDevice(CreateCpuDevice().value()); }

}  // namespace starling
