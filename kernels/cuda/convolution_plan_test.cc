#include "kernels/cuda/convolution_plan.h"

#include <set>

#include "gtest/gtest.h"

namespace starling::cuda {
namespace {

Geometry2d Some() {
  return {.batch = 2,
          .in_channels = 4,
          .in_height = 8,
          .in_width = 9,
          .out_channels = 6,
          .out_height = 3,
          .out_width = 4,
          .kernel_height = 3,
          .kernel_width = 2,
          .stride_height = 2,
          .groups = 2};
}

TEST(ConvolutionKeyTest, ShapesComeFromTheGeometry) {
  const ConvolutionKey key = KeyOf(Some(), Pass::kForward, Element::kHalf, true);
  EXPECT_EQ(key.input, (std::array<int64_t, 4>{2, 4, 8, 9}));
  EXPECT_EQ(key.weight, (std::array<int64_t, 4>{6, 2, 3, 2}));
  EXPECT_EQ(key.output, (std::array<int64_t, 4>{2, 6, 3, 4}));
}

TEST(ConvolutionKeyTest, WhatChangesThePlanChangesTheKey) {
  std::set<ConvolutionKey> keys = {
      KeyOf(Some(), Pass::kForward, Element::kHalf, true),
      KeyOf(Some(), Pass::kInputGradient, Element::kHalf, true),
      KeyOf(Some(), Pass::kForward, Element::kFloat, true),
      KeyOf(Some(), Pass::kForward, Element::kHalf, false),
      KeyOf(Some(), Pass::kForward, Element::kHalf, true, {.tune = true})};
  for (int64_t Geometry2d::*field :
       {&Geometry2d::batch, &Geometry2d::in_height, &Geometry2d::in_width,
        &Geometry2d::out_channels, &Geometry2d::kernel_height, &Geometry2d::stride_width,
        &Geometry2d::padding_height, &Geometry2d::dilation_width, &Geometry2d::groups}) {
    Geometry2d other = Some();
    other.*field = other.*field == 2 ? 4 : 2;
    keys.insert(KeyOf(other, Pass::kForward, Element::kHalf, true));
  }
  EXPECT_EQ(keys.size(), 14u);
  EXPECT_TRUE(keys.contains(KeyOf(Some(), Pass::kForward, Element::kHalf, true)));
}

TEST(ConvolutionKeyTest, OnlyFloatsAreRoundedToTf32) {
  const auto key = [](Element element, bool tf32) {
    return KeyOf(Some(), Pass::kForward, element, false, {.tf32 = tf32});
  };
  EXPECT_NE(key(Element::kFloat, true), key(Element::kFloat, false));
  EXPECT_EQ(key(Element::kHalf, true), key(Element::kHalf, false));
}

TEST(StridesTest, FollowTheLayout) {
  EXPECT_EQ(StridesOf({2, 3, 4, 5}, false), (std::array<int64_t, 4>{60, 20, 5, 1}));
  EXPECT_EQ(StridesOf({2, 3, 4, 5}, true), (std::array<int64_t, 4>{60, 1, 15, 3}));
}

}  // namespace
}  // namespace starling::cuda
