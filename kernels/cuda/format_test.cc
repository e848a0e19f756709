#include "kernels/cuda/format.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling::cuda {
namespace {

using ::testing::HasSubstr;

constexpr Format kPlain;
constexpr Format kHalfPlanes = {Element::kHalf, true};
constexpr Format kHalfRows = {Element::kHalf, false};

TEST(FormatTest, EachHasANumberOfItsOwnAndPlainIsZero) {
  const Shape shape = {2, 3, 4, 5};
  for (uint32_t id = 0; id < 9; ++id) {
    const absl::StatusOr<Format> format = FromValueFormat(shape, ValueFormat{id});
    ASSERT_TRUE(format.ok());
    EXPECT_EQ(ToValueFormat(*format).id, id);
    EXPECT_EQ(format->plain(), id == 0);
  }
}

TEST(FormatTest, OthersAreRefused) {
  EXPECT_THAT(std::string(FromValueFormat({2, 3}, ValueFormat{9}).status().message()),
              HasSubstr("format 9 is not the GPU's, which are 0 to 8"));
  EXPECT_THAT(std::string(FromValueFormat({}, ValueFormat{6}).status().message()),
              HasSubstr("for values with rows, and this one has none"));
  EXPECT_THAT(std::string(FromValueFormat({2, 3}, ValueFormat{1}).status().message()),
              HasSubstr("for values of 4 dimensions, and this one has 2"));
}

TEST(FormatTest, MemoryFollowsTheLayout) {
  const Shape shape = {2, 3, 4, 5};
  EXPECT_EQ(MemoryShape(shape, kPlain), shape);
  EXPECT_EQ(MemoryShape(shape, kHalfPlanes), (Shape{2, 4, 5, 3}));
  for (int64_t axis = 0; axis < 4; ++axis) {
    EXPECT_EQ(MemoryShape(shape, kHalfPlanes)[MemoryAxis(axis, kHalfPlanes)], shape[axis]);
  }
  EXPECT_EQ(ValueBytes(shape, kPlain), 480u);
  EXPECT_EQ(ValueBytes(shape, kHalfPlanes), 240u);
}

FormatPlan Plan(const OperatorSpec& spec, const std::vector<Format>& given) {
  const absl::StatusOr<OperatorGeometry> geometry = ResolveGeometry(spec);
  EXPECT_TRUE(geometry.ok()) << geometry.status();
  return PlanFormats(spec, *geometry, given);
}

TEST(PlanFormatsTest, PlanesAreWantedWithChannelsLast) {
  const OperatorSpec spec = {.name = "bn",
                             .op = "batchnorm",
                             .type = DataType::kFp16,
                             .input_shapes = {{2, 3, 4, 5}},
                             .parameter_shapes = {{3}, {3}, {3}, {3}},
                             .output_shape = {2, 3, 4, 5}};
  EXPECT_EQ(Plan(spec, {kPlain}).inputs[0], kHalfPlanes);
  EXPECT_EQ(Plan(spec, {kPlain}).output, kHalfPlanes);
}

TEST(PlanFormatsTest, ConvolutionsInFloatAreRowMajor) {
  OperatorSpec spec = {.name = "conv",
                       .op = "conv2d",
                       .type = DataType::kFp16,
                       .input_shapes = {{2, 3, 4, 5}},
                       .parameter_shapes = {{7, 3, 1, 1}},
                       .output_shape = {2, 7, 4, 5}};
  EXPECT_EQ(Plan(spec, {kPlain}).output, kHalfPlanes);
  spec.type = DataType::kFp32;
  EXPECT_EQ(Plan(spec, {kHalfPlanes}).output, kPlain);
}

TEST(PlanFormatsTest, ElementwiseKeepsTheLayoutOfTheFirst) {
  const OperatorSpec spec = {.name = "sum",
                             .op = "add",
                             .type = DataType::kFp16,
                             .input_shapes = {{2, 3, 4, 5}, {2, 3, 4, 5}},
                             .output_shape = {2, 3, 4, 5}};
  EXPECT_EQ(Plan(spec, {kHalfPlanes, kPlain}).inputs[1], kHalfPlanes);
  EXPECT_EQ(Plan(spec, {kPlain, kHalfPlanes}).output, kHalfRows);
}

TEST(PlanFormatsTest, LossesReadFloatsAndCrossEntropyLogitsAsTheyAre) {
  OperatorSpec spec = {.name = "loss",
                       .op = "softmax_cross_entropy",
                       .type = DataType::kFp16,
                       .input_shapes = {{2, 3}, {2}},
                       .output_shape = {2}};
  for (const Format& given : {kHalfRows, kPlain, Format{Element::kHalf, false, true}}) {
    EXPECT_EQ(Plan(spec, {given, kPlain}).inputs[0], given);
    EXPECT_TRUE(Plan(spec, {given, kPlain}).inputs[1].plain());
    EXPECT_TRUE(Plan(spec, {given, kPlain}).output.plain());
  }
  spec.op = "mean_squared_error";
  spec.input_shapes[1] = {2, 3};
  EXPECT_TRUE(Plan(spec, {kHalfRows, kPlain}).inputs[0].plain());
}

TEST(PlanFormatsTest, LogitsOfTwoBytesArePaddedToWholePacks) {
  OperatorSpec spec = {.name = "head",
                       .op = "linear",
                       .type = DataType::kFp16,
                       .input_shapes = {{4, 6}},
                       .parameter_shapes = {{10, 6}},
                       .output_shape = {4, 10}};
  EXPECT_FALSE(Plan(spec, {kHalfRows}).output.padded);
  spec.judged_output = true;
  const Format padded = Plan(spec, {kHalfRows}).output;
  EXPECT_TRUE(padded.padded);
  EXPECT_EQ(RowStride(10, padded), 16);
  EXPECT_EQ(ValueBytes({4, 10}, padded), 4u * 16 * 2);
  spec.type = DataType::kFp32;
  EXPECT_FALSE(Plan(spec, {kPlain}).output.padded);
  spec.type = DataType::kFp16;
  spec.parameter_shapes[0][0] = spec.output_shape[1] = 16;
  EXPECT_FALSE(Plan(spec, {kHalfRows}).output.padded) << "16 is whole already";
}

TEST(PlanFormatsTest, IndicesStayAsTheyAre) {
  const OperatorSpec spec = {.name = "wte",
                             .op = "embedding",
                             .type = DataType::kFp16,
                             .input_shapes = {{2, 3}},
                             .parameter_shapes = {{7, 4}},
                             .output_shape = {2, 3, 4}};
  EXPECT_TRUE(Plan(spec, {kPlain}).inputs[0].plain());
  EXPECT_EQ(Plan(spec, {kPlain}).output, kHalfRows);
}

}  // namespace
}  // namespace starling::cuda
