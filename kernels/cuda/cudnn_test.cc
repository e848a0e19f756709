// What of cuDNN can be judged without a GPU: which library is taken, and whether the front end takes our
// descriptions of convolutions.
#include "kernels/cuda/cudnn.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CudnnTest, AMissingLibraryIsNamed) {
  const absl::Status status = Cudnn::Load("libcudnn_absent.so.9").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("libcudnn_absent.so.9"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuDNN 9 for CUDA 13 is needed"));
}

TEST(CudnnTest, AnotherMajorVersionIsRefused) {
  const absl::Status status = Cudnn::Load("kernels/cuda/testing/libcudnn_of_8.so").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is cuDNN 8.9, expected 9.x"));
}

TEST(CudnnTest, DescriptionsOfConvolutionsAreTaken) {
  static_cast<void>(Cudnn::Load());  // without a GPU it cannot make a handle, but is loaded
  const Geometry2d shapes[] = {
      {.batch = 2, .in_channels = 16, .in_height = 17, .in_width = 19, .out_channels = 16,
       .out_height = 9, .out_width = 6, .kernel_height = 3, .kernel_width = 3, .stride_height = 2,
       .stride_width = 3, .padding_height = 1},
      {.batch = 2, .in_channels = 12, .in_height = 9, .in_width = 9, .out_channels = 18,
       .out_height = 7, .out_width = 7, .kernel_height = 3, .kernel_width = 3, .groups = 3},
  };
  for (const Geometry2d& shape : shapes) {
    for (Pass pass : {Pass::kForward, Pass::kInputGradient, Pass::kWeightGradient}) {
      for (Element element : {Element::kFloat, Element::kBfloat16, Element::kHalf}) {
        const absl::Status status =
            ValidateConvolution(KeyOf(shape, pass, element, element != Element::kFloat));
        EXPECT_TRUE(status.ok()) << status << " pass " << static_cast<int>(pass) << " element "
                                 << static_cast<int>(element);
      }
    }
  }
}

}  // namespace
}  // namespace starling::cuda
