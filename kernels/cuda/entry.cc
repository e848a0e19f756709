// The exports of libstarling_cuda.so (kernels/cuda/abi.h): nothing else is visible (exports.lds).
#include "kernels/cuda/abi.h"
#include "kernels/cuda/cuda_device.h"

extern "C" {

const char* starling_cuda_abi() {
  static const std::string* const abi = new std::string(starling::DeviceAbi());
  return abi->c_str();
}

int starling_cuda_open(starling::Device** device, char* error, size_t error_bytes) {
  auto made = starling::cuda::CreateCudaDevice();
  if (!made.ok()) return starling::ReturnStatus(made.status(), error, error_bytes);
  *device = made->release();
  return 0;
}
}
