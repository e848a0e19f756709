// The shared object, opened as a program opens it. On a machine without a GPU it reports why there
// is none; it never ends the process.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/library.h"

namespace starling {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(SharedObjectTest, OpensOrSaysWhyNot) {
  const absl::StatusOr<std::unique_ptr<Device>> device =
      OpenCudaDevice("worker/libstarling_cuda.so");
  if (device.ok()) {
    EXPECT_THAT((*device)->instruction_set(), HasSubstr("sm_"));
    return;
  }
  EXPECT_THAT(std::string(device.status().message()),
              AnyOf(HasSubstr("NVIDIA driver"), HasSubstr("the GPU is a "), HasSubstr("cuBLAS")));
}

}  // namespace
}  // namespace starling
