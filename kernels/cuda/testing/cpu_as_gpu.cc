#include <cstdlib>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/abi.h"
#include "kernels/testing/fake_discrete_device.h"

extern "C" {

const char* starling_cuda_abi() {
  static const std::string* const abi = new std::string(starling::DeviceAbi());
  return abi->c_str();
}

int starling_cuda_open(starling::Device** device, char* error, size_t error_bytes) {
  auto cpu = starling::CreateCpuDevice();
  if (!cpu.ok()) return starling::ReturnStatus(cpu.status(), error, error_bytes);
  starling::FarOptions options;
  if (const char* const bytes = std::getenv("CPU_AS_GPU_BYTES")) {
    options.memory_bytes = std::strtoull(bytes, nullptr, 10);
  }
  *device = starling::MakeFakeDiscreteDevice(*std::move(cpu), std::move(options)).release();
  return 0;
}
}
