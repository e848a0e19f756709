// The shared object, opened as a program opens it. On a machine without a GPU it says why there is
// none; it never ends the process.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/library.h"

namespace starling {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(SharedObjectTest, OpensOrSaysWhyNot) {
  const absl::Status status = OpenCudaDevice("worker/libstarling_cuda.so").status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              AnyOf(HasSubstr("NVIDIA driver"), HasSubstr("the GPU is a "),
                    HasSubstr("has no operators yet")));
}

}  // namespace
}  // namespace starling
