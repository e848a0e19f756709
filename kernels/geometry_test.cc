#include "kernels/geometry.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

OperatorSpec Conv() {
  OperatorSpec spec;
  spec.name = "conv1";
  spec.op = "conv2d";
  spec.attributes = {{"stride", std::vector<int64_t>{2, 1}}, {"padding", int64_t{1}}};
  spec.input_shapes = {{5, 3, 11, 13}};
  spec.parameter_shapes = {{7, 3, 3, 5}, {7}};
  spec.output_shape = {5, 7, 6, 11};
  return spec;
}

std::string ErrorOf(const OperatorSpec& spec) {
  absl::StatusOr<OperatorGeometry> geometry = ResolveGeometry(spec);
  return geometry.ok() ? "ok" : std::string(geometry.status().message());
}

TEST(GeometryTest, ResolvesConvolution) {
  absl::StatusOr<OperatorGeometry> g = ResolveGeometry(Conv());
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(g->plane.out_height, 6);
  EXPECT_EQ(g->plane.out_width, 11);
  EXPECT_EQ(g->plane.stride_height, 2);
  EXPECT_EQ(g->plane.stride_width, 1);
  EXPECT_EQ(g->plane.padding_width, 1);
  EXPECT_TRUE(g->plane.bias);
}

TEST(GeometryTest, NamesWhatIsWrong) {
  OperatorSpec spec = Conv();
  spec.output_shape = {5, 7, 6, 12};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("operator 'conv1' (conv2d): the output has shape "
                                       "[5, 7, 6, 12], expected [5, 7, 6, 11]"));
  spec = Conv();
  spec.attributes["strid"] = int64_t{1};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("unknown attribute 'strid'"));
  spec = Conv();
  spec.attributes["stride"] = int64_t{0};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("'stride' must be"));
  spec = Conv();
  spec.attributes["groups"] = int64_t{2};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("groups = 2 does not divide"));
  spec = Conv();
  spec.attributes["dilation"] = int64_t{9};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("does not fit"));
  spec = Conv();
  spec.attributes["dilation"] = int64_t{1} << 62;
  EXPECT_THAT(ErrorOf(spec), HasSubstr("'dilation' must be"));
  spec = Conv();
  spec.input_shapes[0][0] = int64_t{1} << 50;
  EXPECT_THAT(ErrorOf(spec), HasSubstr("at most 2^40"));
  spec = Conv();
  spec.input_shapes[0][1] = 0;
  EXPECT_THAT(ErrorOf(spec), HasSubstr("at least 1"));
  spec = Conv();
  spec.parameter_shapes.clear();
  EXPECT_THAT(ErrorOf(spec), HasSubstr("has 0 parameters, expected 1 to 2"));
  spec = Conv();
  spec.op = "conv3d";
  EXPECT_EQ(ResolveGeometry(spec).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("conv2d, maxpool2d"));
}

TEST(GeometryTest, ChecksRanges) {
  OperatorSpec dropout;
  dropout.name = "d";
  dropout.op = "dropout";
  dropout.input_shapes = {{2, 3}};
  dropout.output_shape = {2, 3};
  EXPECT_THAT(ErrorOf(dropout), HasSubstr("needs the attribute 'rate'"));
  dropout.attributes["rate"] = 1.0;
  EXPECT_THAT(ErrorOf(dropout), HasSubstr("[0, 1)"));
  dropout.attributes["rate"] = 0.5;
  EXPECT_EQ(ErrorOf(dropout), "ok");

  OperatorSpec pool;
  pool.name = "p";
  pool.op = "maxpool2d";
  pool.input_shapes = {{1, 1, 4, 4}};
  pool.output_shape = {1, 1, 2, 2};
  pool.attributes["kernel"] = int64_t{2};
  EXPECT_EQ(ErrorOf(pool), "ok");
  pool.attributes["padding"] = int64_t{2};
  EXPECT_THAT(ErrorOf(pool), HasSubstr("more than half of the kernel"));
}

}  // namespace
}  // namespace starling
