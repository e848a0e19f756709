#include "kernels/cuda/status.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling::cuda {
namespace {

using ::testing::HasSubstr;

absl::Status Two(cudaError_t first, cudaError_t second) {
  STARLING_RETURN_IF_CUDA_ERROR(first);
  STARLING_RETURN_IF_CUDA_ERROR(second);
  return absl::OkStatus();
}

TEST(CudaStatusTest, TellsErrorsApart) {
  EXPECT_TRUE(Two(cudaSuccess, cudaSuccess).ok());
  EXPECT_EQ(Two(cudaSuccess, cudaErrorMemoryAllocation).code(),
            absl::StatusCode::kResourceExhausted);
  for (cudaError_t other :
       {cudaErrorInvalidValue, cudaErrorOperatingSystem, cudaErrorStreamCaptureUnsupported}) {
    EXPECT_EQ(Two(other, cudaSuccess).code(), absl::StatusCode::kInternal);
  }
  for (cudaError_t lost : {cudaErrorIllegalAddress, cudaErrorECCUncorrectable, cudaErrorNoDevice,
                           cudaErrorContained, cudaErrorTensorMemoryLeak}) {
    EXPECT_EQ(Two(lost, cudaSuccess).code(), absl::StatusCode::kUnavailable);
  }
}

TEST(CudaStatusTest, NamesCallAndError) {
  const absl::Status status = CudaStatus(cudaErrorMemoryAllocation, "cudaMalloc(&memory, bytes)");
  EXPECT_THAT(std::string(status.message()), HasSubstr("cudaMalloc: cudaErrorMemoryAllocation ("));
  EXPECT_THAT(std::string(CudaStatus(cudaErrorLaunchFailure, "cudaStreamSynchronize").message()),
              HasSubstr("the GPU is lost to this process: cudaStreamSynchronize: "));
}

}  // namespace
}  // namespace starling::cuda
