// This build, on a machine whose driver does not answer.
#include <unistd.h>

#include "kernels/cuda/abi.h"

extern "C" {

const char* starling_cuda_abi() {
  static const std::string* const abi = new std::string(starling::DeviceAbi());
  return abi->c_str();
}

int starling_cuda_open(starling::Device**, char*, size_t) {
  for (;;) pause();
}
}
