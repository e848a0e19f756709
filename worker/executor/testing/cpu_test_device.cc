#include "kernels/cpu/cpu_device.h"
#include "worker/executor/testing/harness.h"

namespace starling {

std::unique_ptr<Device> MakeTestDevice() { return CreateCpuDevice().value(); }

}  // namespace starling
