#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/fake_discrete_device.h"
#include "worker/executor/testing/harness.h"

namespace starling {

std::unique_ptr<Device> MakeTestDevice() {
  return MakeFakeDiscreteDevice(CreateCpuDevice().value());
}

}  // namespace starling
