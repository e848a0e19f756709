#include "kernels/geometry.h"

#include <string>
#include <utility>
#include <vector>

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

OperatorSpec Spec(const std::string& op, std::vector<Shape> inputs, Shape output,
                  AttributeMap attributes = {}, std::vector<Shape> parameters = {}) {
  OperatorSpec spec;
  spec.name = "n";
  spec.op = op;
  spec.input_shapes = std::move(inputs);
  spec.output_shape = std::move(output);
  spec.attributes = std::move(attributes);
  spec.parameter_shapes = std::move(parameters);
  return spec;
}

TEST(GeometryTest, ChecksShapesOfSeveralInputs) {
  EXPECT_EQ(ErrorOf(Spec("add", {{2, 3}, {2, 3}}, {2, 3})), "ok");
  EXPECT_THAT(ErrorOf(Spec("add", {{2, 3}}, {2, 3})), HasSubstr("has 1 inputs, expected 2"));
  EXPECT_THAT(ErrorOf(Spec("mul", {{2, 3}, {2, 1}}, {2, 3})),
              HasSubstr("an input has shape [2, 1], expected [2, 3]"));
  EXPECT_EQ(ErrorOf(Spec("concat", {{2, 3}, {2, 5}}, {2, 8}, {{"axis", int64_t{0}}})), "ok");
  EXPECT_THAT(ErrorOf(Spec("concat", {{2, 3}}, {2, 3}, {{"axis", int64_t{0}}})),
              HasSubstr("has 1 inputs, expected at least 2"));
  EXPECT_THAT(ErrorOf(Spec("concat", {{2, 3}, {2, 5}}, {2, 8}, {{"axis", int64_t{1}}})),
              HasSubstr("a sample of [2, 3] has 1 dimensions"));
  EXPECT_THAT(ErrorOf(Spec("concat", {{2, 3, 4}, {2, 5, 3}}, {2, 8, 4}, {{"axis", int64_t{0}}})),
              HasSubstr("expected [2, 3, 4]"));
  EXPECT_THAT(ErrorOf(Spec("matmul", {{2, 3, 4}, {2, 3, 4}}, {2, 3, 4})),
              HasSubstr("the second input has shape [2, 3, 4], expected [2, 4, 4]"));
  EXPECT_EQ(
      ErrorOf(Spec("matmul", {{2, 3, 4}, {2, 3, 4}}, {2, 3, 3}, {{"transpose_b", int64_t{1}}})),
      "ok");
  const Shape sequence = {2, 5, 12};
  EXPECT_EQ(ErrorOf(Spec("attention", {sequence, sequence, sequence}, sequence,
                         {{"heads", int64_t{3}}, {"causal", int64_t{1}}})),
            "ok");
  EXPECT_THAT(
      ErrorOf(Spec("attention", {sequence, sequence, sequence}, sequence, {{"heads", int64_t{5}}})),
      HasSubstr("heads = 5 does not divide 12 features"));
  EXPECT_THAT(ErrorOf(Spec("attention", {sequence, sequence, sequence}, sequence,
                           {{"causal", int64_t{2}}})),
              HasSubstr("'causal' must be 0 or 1"));
}

TEST(GeometryTest, ChecksHowElementsMove) {
  const auto slice = [](int64_t begin, int64_t length) {
    return Spec("slice", {{2, 7}}, {2, length},
                {{"axis", int64_t{0}}, {"begin", begin}, {"length", length}});
  };
  EXPECT_EQ(ErrorOf(slice(3, 4)), "ok");
  EXPECT_THAT(ErrorOf(slice(4, 4)), HasSubstr("[4, 8) does not lie in the axis' [0, 7)"));
  EXPECT_THAT(ErrorOf(Spec("slice", {{2, 7}}, {2, 7}, {{"axis", int64_t{0}}})),
              HasSubstr("needs the attribute 'begin'"));
  const auto reshape = [](std::vector<int64_t> shape) {
    return Spec("reshape", {{2, 12}}, {2, 3, 4}, {{"shape", std::move(shape)}});
  };
  EXPECT_EQ(ErrorOf(reshape({3, 4})), "ok");
  EXPECT_EQ(ErrorOf(reshape({3, -1})), "ok");
  EXPECT_THAT(ErrorOf(reshape({5, -1})), HasSubstr("a sample has 12 elements"));
  EXPECT_THAT(ErrorOf(reshape({-1, -1})), HasSubstr("a sample has 12 elements"));
  EXPECT_THAT(ErrorOf(reshape({0, 4})), HasSubstr("a sample has 12 elements"));
  const auto transpose = [](std::vector<int64_t> axes) {
    return Spec("transpose", {{2, 3, 4}}, {2, 4, 3}, {{"axes", std::move(axes)}});
  };
  EXPECT_EQ(ErrorOf(transpose({1, 0})), "ok");
  EXPECT_THAT(ErrorOf(transpose({1, 1})), HasSubstr("expected the axes [0, 1] in some order"));
  EXPECT_THAT(ErrorOf(transpose({1, 2})), HasSubstr("expected the axes [0, 1] in some order"));
  EXPECT_THAT(ErrorOf(transpose({0, 1})), HasSubstr("expected [2, 3, 4]"));
}

TEST(GeometryTest, ChecksRowsAndLosses) {
  EXPECT_EQ(ErrorOf(Spec("linear", {{2, 5, 3}}, {2, 5, 4}, {}, {{4, 3}, {4}})), "ok");
  EXPECT_THAT(ErrorOf(Spec("linear", {{2}}, {2}, {}, {{4, 3}})),
              HasSubstr("at least [N, features]"));
  const auto linear = [](int64_t gelu) {
    return Spec("linear", {{2, 3}}, {2, 4}, {{"gelu", gelu}}, {{4, 3}});
  };
  EXPECT_FALSE(ResolveGeometry(linear(0))->gelu);
  EXPECT_TRUE(ResolveGeometry(linear(1))->gelu);
  EXPECT_THAT(ErrorOf(linear(2)), HasSubstr("attribute 'gelu' must be 0 or 1"));
  EXPECT_THAT(ErrorOf(Spec("layernorm", {{2, 5}}, {2, 5}, {}, {{5}, {4}})),
              HasSubstr("the bias has shape [4], expected [5]"));
  EXPECT_EQ(ErrorOf(Spec("embedding", {{2, 5}}, {2, 5, 3}, {}, {{7, 3}})), "ok");
  EXPECT_THAT(ErrorOf(Spec("embedding", {{2, 5}}, {2, 5, 3}, {{"rows", int64_t{8}}}, {{7, 3}})),
              HasSubstr("'rows' is 8, but the weight says 7"));
  EXPECT_THAT(ErrorOf(Spec("position_embedding", {{2, 5, 3}}, {2, 5, 3}, {}, {{4, 3}})),
              HasSubstr("has 5 positions, but the weight only 4 rows"));
  EXPECT_THAT(ErrorOf(Spec("clip", {{2}}, {2}, {{"minimum", 1.0}, {"maximum", 1.0}})),
              HasSubstr("must be below"));
  EXPECT_EQ(ErrorOf(Spec("softmax_cross_entropy", {{2, 5, 3}, {2, 5}}, {2})), "ok");
  EXPECT_THAT(ErrorOf(Spec("softmax_cross_entropy", {{2, 5, 3}, {2}}, {2})),
              HasSubstr("the labels has shape [2], expected [2, 5]"));
  EXPECT_THAT(ErrorOf(Spec("mean_squared_error", {{2, 5}, {2}}, {2})),
              HasSubstr("expected [2, 5]"));
  EXPECT_THAT(ErrorOf(Spec("relu", {Shape(13, 1)}, Shape(13, 1))),
              HasSubstr("at most 12 dimensions"));
}

}  // namespace
}  // namespace starling
