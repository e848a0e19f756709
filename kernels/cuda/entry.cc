// What libstarling_cuda.so shows (kernels/cuda/abi.h): nothing else of it is visible (exports.lds).
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/abi.h"
#include "kernels/cuda/survey.h"

namespace starling::cuda {
namespace {

std::string ErrorText(cudaError_t error) {
  return absl::StrCat(cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
}

Survey LookAround() {
  Survey survey;
  survey.toolkit = CUDART_VERSION;
  if (cudaDriverGetVersion(&survey.driver) != cudaSuccess) survey.driver = 0;
  cudaError_t error = cudaGetDeviceCount(&survey.gpus);
  cudaDeviceProp properties = {};
  if (error == cudaSuccess && survey.gpus > 0) error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) survey.error = ErrorText(error);
  survey.name = properties.name;
  survey.compute_major = properties.major;
  survey.compute_minor = properties.minor;
  return survey;
}

absl::Status Open(Device**) {
  const Survey survey = LookAround();
  if (absl::Status status = CheckSurvey(survey); !status.ok()) return status;
  return absl::UnimplementedError(absl::StrCat(
      "there is a GPU, ", survey.name, ", but this version's CUDA backend has no operators yet"));
}

}  // namespace
}  // namespace starling::cuda

extern "C" {

const char* starling_cuda_abi() {
  static const std::string* const abi = new std::string(starling::DeviceAbi());
  return abi->c_str();
}

int starling_cuda_open(starling::Device** device, char* error, size_t error_bytes) {
  return starling::ReturnStatus(starling::cuda::Open(device), error, error_bytes);
}
}
