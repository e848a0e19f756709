// This build, on a machine whose driver is too old.
#include "kernels/cuda/abi.h"
#include "kernels/cuda/survey.h"

extern "C" {

const char* starling_cuda_abi() {
  static const std::string* const abi = new std::string(starling::DeviceAbi());
  return abi->c_str();
}

int starling_cuda_open(starling::Device**, char* error, size_t error_bytes) {
  const starling::cuda::Survey survey = {
      .toolkit = 13000, .driver = 12040, .error = "cudaErrorInsufficientDriver"};
  return starling::ReturnStatus(starling::cuda::CheckSurvey(survey), error, error_bytes);
}
}
