#include "kernels/cuda/library.h"
#include "worker/executor/testing/harness.h"

namespace starling {

std::unique_ptr<Device> MakeTestDevice() {
  return OpenCudaDevice("kernels/cuda/emulation/libstarling_cuda.so").value();
}

}  // namespace starling
