// What can be tested of cuDNN without a GPU: which library is loaded, and whether the front end
// accepts our descriptions of convolutions.
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
  static_cast<void>(Cudnn::Load());  // without a GPU it cannot create a handle, but is loaded
  const Geometry2d shapes[] = {
      {.batch = 2,
       .in_channels = 16,
       .in_height = 17,
       .in_width = 19,
       .out_channels = 16,
       .out_height = 9,
       .out_width = 6,
       .kernel_height = 3,
       .kernel_width = 3,
       .stride_height = 2,
       .stride_width = 3,
       .padding_height = 1},
      {.batch = 2,
       .in_channels = 12,
       .in_height = 9,
       .in_width = 9,
       .out_channels = 18,
       .out_height = 7,
       .out_width = 7,
       .kernel_height = 3,
       .kernel_width = 3,
       .groups = 3},
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

OperatorGeometry AttentionOf(int64_t positions, int64_t heads, int64_t width) {
  OperatorGeometry g;
  g.batch = 2;
  g.rows = positions;
  g.heads = heads;
  g.inputs = heads * width;
  return g;
}

TEST(CudnnTest, DescriptionsOfAttentionAreTaken) {
  static_cast<void>(Cudnn::Load());
  for (OperatorGeometry g : {AttentionOf(128, 2, 64), AttentionOf(1024, 12, 64),
                             AttentionOf(130, 3, 8), AttentionOf(7, 1, 128)}) {
    for (int bits = 0; bits < 16; ++bits) {
      g.causal = (bits & 1) != 0;
      g.packed = (bits & 2) != 0;
      const bool training = (bits & 4) != 0;
      const Element element = (bits & 8) != 0 ? Element::kBfloat16 : Element::kHalf;
      for (bool backward : {false, true}) {
        if (backward && !training) continue;
        const absl::Status status =
            ValidateAttention(KeyOf(g, g.batch, element, training, backward));
        EXPECT_TRUE(status.ok()) << status << " positions " << g.rows << " bits " << bits
                                 << " backward " << backward;
      }
    }
  }
}

TEST(CudnnTest, AttentionOfOtherShapesIsUnimplemented) {
  static_cast<void>(Cudnn::Load());
  const OperatorGeometry odd_heads = AttentionOf(7, 2, 5), wide_heads = AttentionOf(64, 1, 264),
                         one_position = AttentionOf(1, 1, 8);
  for (bool backward : {false, true}) {
    EXPECT_EQ(ValidateAttention(KeyOf(odd_heads, 2, Element::kHalf, true, backward)).code(),
              absl::StatusCode::kUnimplemented);
  }
  for (const OperatorGeometry& g : {wide_heads, one_position}) {
    EXPECT_EQ(ValidateAttention(KeyOf(g, 2, Element::kHalf, true, true)).code(),
              absl::StatusCode::kUnimplemented);
  }
}

}  // namespace
}  // namespace starling::cuda
