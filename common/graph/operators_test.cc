#include "common/graph/operators.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using testing::HasSubstr;

Node MakeNode(const std::string& op) {
  Node node;
  node.set_op(op);
  return node;
}

void SetInt(Node* node, const std::string& name, int64_t value) {
  (*node->mutable_attributes())[name].set_i(value);
}

absl::StatusOr<OperatorAttributes> Resolve(const Node& node) {
  return ResolveAttributes(node, *FindOperator(node.op()));
}

TEST(OperatorsTest, TableIsOrderedByKind) {
  for (size_t i = 0; i < Operators().size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(Operators()[i].kind), i);
    EXPECT_EQ(FindOperator(Operators()[i].name), &Rule(Operators()[i].kind));
  }
  EXPECT_EQ(FindOperator("conv3d"), nullptr);
}

TEST(OperatorsTest, AttributesTakeDefaultsAndOneIntegerForAPair) {
  Node node = MakeNode("conv2d");
  SetInt(&node, "out_channels", 8);
  SetInt(&node, "kernel", 3);
  (*node.mutable_attributes())["padding"].mutable_ints()->add_values(1);
  (*node.mutable_attributes())["padding"].mutable_ints()->add_values(2);
  SetInt(&node, "bias", 0);
  OperatorAttributes expected;
  expected.out_channels = 8;
  expected.kernel = {3, 3};
  expected.padding = {1, 2};
  expected.bias = false;
  EXPECT_EQ(Resolve(node).value(), expected);
}

TEST(OperatorsTest, PoolsStrideDefaultsToTheKernel) {
  Node node = MakeNode("maxpool2d");
  SetInt(&node, "kernel", 3);
  EXPECT_EQ(Resolve(node)->stride, (std::array<int64_t, 2>{3, 3}));
  SetInt(&node, "stride", 2);
  EXPECT_EQ(Resolve(node)->stride, (std::array<int64_t, 2>{2, 2}));
}

TEST(OperatorsTest, BadAttributesAreNamed) {
  Node node = MakeNode("linear");
  EXPECT_THAT(Resolve(node).status().message(), HasSubstr("expected out_features"));
  SetInt(&node, "out_features", 0);
  EXPECT_THAT(Resolve(node).status().message(), HasSubstr("in [1, 16777216], got 0"));
  (*node.mutable_attributes())["out_features"].set_s("ten");
  EXPECT_THAT(Resolve(node).status().message(), HasSubstr("got \"ten\""));
  (*node.mutable_attributes())["out_features"].set_f(10.5);
  EXPECT_THAT(Resolve(node).status().message(), HasSubstr("to be an integer"));
  SetInt(&node, "out_features", 10);
  SetInt(&node, "unit", 3);
  EXPECT_THAT(Resolve(node).status().message(),
              HasSubstr("only the attributes out_features, bias, got \"unit\""));
  Node dropout = MakeNode("dropout");
  for (double rate : {-0.1, 1.0, std::nan("")}) {
    (*dropout.mutable_attributes())["rate"].set_f(rate);
    EXPECT_FALSE(Resolve(dropout).ok()) << rate;
  }
  (*dropout.mutable_attributes())["rate"].set_f(0.25);
  EXPECT_EQ(Resolve(dropout)->rate, 0.25);
}

TEST(OperatorsTest, ShapesFollowTheWindow) {
  OperatorAttributes a;
  a.out_channels = 32;
  a.kernel = {3, 5};
  a.stride = {2, 1};
  a.padding = {1, 0};
  EXPECT_EQ(InferShape(OpKind::kConv2d, a, {3, 28, 28}).value(), (Dims{32, 14, 24}));
  a.kernel = {2, 2};
  a.stride = {2, 2};
  a.padding = {0, 0};
  EXPECT_EQ(InferShape(OpKind::kMaxPool2d, a, {3, 7, 8}).value(), (Dims{3, 3, 4}));
  EXPECT_EQ(InferShape(OpKind::kFlatten, a, {3, 7, 8}).value(), (Dims{168}));
  EXPECT_EQ(InferShape(OpKind::kSoftmaxCrossEntropy, a, {10}).value(), (Dims{}));
  EXPECT_EQ(InferShape(OpKind::kGatherRows, a, {}).value(), (Dims{1}));
}

TEST(OperatorsTest, ShapesThatDoNotFitAreRefused) {
  OperatorAttributes a;
  a.out_channels = 4;
  a.kernel = {9, 9};
  EXPECT_THAT(InferShape(OpKind::kConv2d, a, {1, 8, 28}).status().message(),
              HasSubstr("at least 9 in height"));
  EXPECT_THAT(InferShape(OpKind::kConv2d, a, {64}).status().message(),
              HasSubstr("[channels, height, width], got [64]"));
  EXPECT_THAT(InferShape(OpKind::kLinear, a, {64, 12, 12}).status().message(),
              HasSubstr("put a flatten before it), got [64, 12, 12]"));
  a.padding = {5, 5};
  EXPECT_THAT(InferShape(OpKind::kAvgPool2d, a, {1, 28, 28}).status().message(),
              HasSubstr("padding 5 for kernel 9"));
  EXPECT_FALSE(InferShape(OpKind::kSoftmaxCrossEntropy, a, {1}).ok());
}

TEST(OperatorsTest, SizesAreChecked) {
  EXPECT_EQ(CheckedElements({}).value(), 1);
  EXPECT_EQ(CheckedElements({2, 3, 4}).value(), 24);
  EXPECT_FALSE(CheckedElements({2, 0}).ok());
  EXPECT_FALSE(CheckedElements({-1}).ok());
  EXPECT_FALSE(CheckedElements({int64_t{1} << 32, int64_t{1} << 32}).ok());
  EXPECT_FALSE(CheckedElements({int64_t{1} << 34}).ok());
  EXPECT_FALSE(CheckedElements(Dims(9, 1)).ok());
  OperatorAttributes a;
  a.out_features = 1 << 24;
  EXPECT_FALSE(InferParameters(OpKind::kLinear, a, {1 << 24}).ok());
}

TEST(OperatorsTest, ParametersHavePyTorchsBounds) {
  OperatorAttributes a;
  a.out_channels = 64;
  a.kernel = {3, 3};
  const std::vector<ParameterSpec> conv = InferParameters(OpKind::kConv2d, a, {32, 26, 26}).value();
  ASSERT_EQ(conv.size(), 2u);
  EXPECT_EQ(conv[0].shape, (Dims{64, 32, 3, 3}));
  EXPECT_EQ(conv[1].shape, (Dims{64}));
  EXPECT_EQ(conv[0].init.kind(), Initializer::UNIFORM);
  EXPECT_DOUBLE_EQ(conv[0].init.value(), 1 / std::sqrt(288.0));
  EXPECT_DOUBLE_EQ(conv[1].init.value(), 1 / std::sqrt(288.0));
  const std::vector<ParameterSpec> bn = InferParameters(OpKind::kBatchNorm, a, {64, 5, 5}).value();
  ASSERT_EQ(bn.size(), 4u);
  EXPECT_STREQ(bn[2].role, "running_mean");
  EXPECT_EQ(bn[2].kind, STATISTIC);
  EXPECT_EQ(bn[3].init.value(), 1);
}

}  // namespace
}  // namespace starling
