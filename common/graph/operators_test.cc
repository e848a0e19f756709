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
  EXPECT_EQ(InferShape(OpKind::kConv2d, a, {Dims{3, 28, 28}}).value(), (Dims{32, 14, 24}));
  a.kernel = {2, 2};
  a.stride = {2, 2};
  a.padding = {0, 0};
  EXPECT_EQ(InferShape(OpKind::kMaxPool2d, a, {Dims{3, 7, 8}}).value(), (Dims{3, 3, 4}));
  EXPECT_EQ(InferShape(OpKind::kFlatten, a, {Dims{3, 7, 8}}).value(), (Dims{168}));
  EXPECT_EQ(InferShape(OpKind::kSoftmaxCrossEntropy, a, {Dims{10}, Dims{}}).value(), (Dims{}));
  EXPECT_EQ(InferShape(OpKind::kGatherRows, a, {Dims{}}).value(), (Dims{1}));
}

TEST(OperatorsTest, ShapesThatDoNotFitAreRefused) {
  OperatorAttributes a;
  a.out_channels = 4;
  a.kernel = {9, 9};
  EXPECT_THAT(InferShape(OpKind::kConv2d, a, {Dims{1, 8, 28}}).status().message(),
              HasSubstr("at least 9 in height"));
  EXPECT_THAT(InferShape(OpKind::kConv2d, a, {Dims{64}}).status().message(),
              HasSubstr("[channels, height, width], got [64]"));
  EXPECT_THAT(InferShape(OpKind::kLinear, a, {Dims{}}).status().message(),
              HasSubstr("[..., features], got []"));
  a.padding = {5, 5};
  EXPECT_THAT(InferShape(OpKind::kAvgPool2d, a, {Dims{1, 28, 28}}).status().message(),
              HasSubstr("padding 5 for kernel 9"));
  EXPECT_FALSE(InferShape(OpKind::kSoftmaxCrossEntropy, a, {Dims{1}, Dims{}}).ok());
}

std::string Refusal(OpKind kind, const OperatorAttributes& a, const std::vector<Dims>& inputs) {
  const absl::StatusOr<Dims> shape = InferShape(kind, a, inputs);
  return shape.ok() ? "accepted" : std::string(shape.status().message());
}

TEST(OperatorsTest, WindowsMayBeDilatedAndChannelsGrouped) {
  OperatorAttributes a;
  a.out_channels = 6;
  a.kernel = {3, 3};
  a.dilation = {2, 3};
  a.groups = 3;
  EXPECT_EQ(InferShape(OpKind::kConv2d, a, {Dims{9, 11, 11}}).value(), (Dims{6, 7, 5}));
  EXPECT_EQ(InferParameters(OpKind::kConv2d, a, {Dims{9, 11, 11}})->at(0).shape,
            (Dims{6, 3, 3, 3}));
  EXPECT_THAT(Refusal(OpKind::kConv2d, a, {{8, 11, 11}}), HasSubstr("groups 3 for 8 channels"));
  EXPECT_THAT(Refusal(OpKind::kConv2d, a, {{9, 11, 6}}), HasSubstr("at least 7 in width"));
}

TEST(OperatorsTest, SeveralInputsMustFitEachOther) {
  OperatorAttributes a;
  EXPECT_EQ(InferShape(OpKind::kAdd, a, {Dims{2, 3}, Dims{2, 3}}).value(), (Dims{2, 3}));
  EXPECT_THAT(Refusal(OpKind::kMul, a, {{2, 3}, {3, 2}}), HasSubstr("got [2, 3] and [3, 2]"));
  a.axis = 1;
  EXPECT_EQ(InferShape(OpKind::kConcat, a, {Dims{2, 3}, Dims{2, 1}, Dims{2, 5}}).value(),
            (Dims{2, 9}));
  EXPECT_THAT(Refusal(OpKind::kConcat, a, {{2, 3}, {3, 3}}), HasSubstr("differ in axis 1 only"));
  EXPECT_THAT(Refusal(OpKind::kConcat, a, {{2}, {2}}), HasSubstr("an axis below 1"));
  EXPECT_EQ(InferShape(OpKind::kMatmul, a, {Dims{7, 2, 3}, Dims{7, 3, 4}}).value(),
            (Dims{7, 2, 4}));
  a.transpose_b = true;
  EXPECT_EQ(InferShape(OpKind::kMatmul, a, {Dims{2, 3}, Dims{4, 3}}).value(), (Dims{2, 4}));
  EXPECT_THAT(Refusal(OpKind::kMatmul, a, {{2, 3}, {3, 4}}), HasSubstr("[..., N, K]"));
  EXPECT_THAT(Refusal(OpKind::kMatmul, a, {{3}, {3}}), HasSubstr("got [3] and [3]"));
  a.heads = 2;
  EXPECT_EQ(InferShape(OpKind::kAttention, a, {Dims{5, 4}, Dims{5, 4}, Dims{5, 4}}).value(),
            (Dims{5, 4}));
  EXPECT_THAT(Refusal(OpKind::kAttention, a, {{5, 3}, {5, 3}, {5, 3}}), HasSubstr("2 heads for 3"));
}

TEST(OperatorsTest, LayoutsMove) {
  OperatorAttributes a;
  a.axis = 1;
  a.begin = 2;
  a.length = 3;
  EXPECT_EQ(InferShape(OpKind::kSlice, a, {Dims{4, 5}}).value(), (Dims{4, 3}));
  EXPECT_THAT(Refusal(OpKind::kSlice, a, {{5, 4}}), HasSubstr("got 2 + 3"));
  a.shape = {3, -1, 2};
  EXPECT_EQ(InferShape(OpKind::kReshape, a, {Dims{6, 5, 2}}).value(), (Dims{3, 10, 2}));
  EXPECT_THAT(Refusal(OpKind::kReshape, a, {{7}}), HasSubstr("7 elements"));
  a.shape = {-1, -1};
  EXPECT_THAT(Refusal(OpKind::kReshape, a, {{4}}), HasSubstr("at least 1"));
  a.axes = {2, 0, 1};
  EXPECT_EQ(InferShape(OpKind::kTranspose, a, {Dims{3, 4, 5}}).value(), (Dims{5, 3, 4}));
  a.axes = {0, 0, 1};
  EXPECT_THAT(Refusal(OpKind::kTranspose, a, {{3, 4, 5}}), HasSubstr("permutation of 0 to 2"));
  EXPECT_EQ(InferShape(OpKind::kGlobalAvgPool2d, a, {Dims{3, 4, 5}}).value(), (Dims{3}));
}

TEST(OperatorsTest, SequencesAndLosses) {
  OperatorAttributes a;
  a.rows = 10;
  a.features = 4;
  a.out_features = 7;
  EXPECT_EQ(InferShape(OpKind::kEmbedding, a, {Dims{6}}).value(), (Dims{6, 4}));
  EXPECT_EQ(InferParameters(OpKind::kEmbedding, a, {Dims{6}})->at(0).shape, (Dims{10, 4}));
  EXPECT_EQ(InferParameters(OpKind::kPositionEmbedding, a, {Dims{6, 4}})->at(0).shape,
            (Dims{10, 4}));
  EXPECT_THAT(Refusal(OpKind::kPositionEmbedding, a, {{11, 4}}), HasSubstr("at most 10 positions"));
  EXPECT_EQ(InferShape(OpKind::kLinear, a, {Dims{6, 4}}).value(), (Dims{6, 7}));
  EXPECT_EQ(InferParameters(OpKind::kLayerNorm, a, {Dims{6, 4}})->at(1).shape, (Dims{4}));
  EXPECT_EQ(InferShape(OpKind::kSoftmaxCrossEntropy, a, {Dims{6, 9}, Dims{6}}).value(), Dims());
  EXPECT_THAT(Refusal(OpKind::kSoftmaxCrossEntropy, a, {{9}, {6}}), HasSubstr("the labels [6]"));
  EXPECT_EQ(InferShape(OpKind::kMeanSquaredError, a, {Dims{3}, Dims{3}}).value(), Dims());
  EXPECT_THAT(Refusal(OpKind::kBinaryCrossEntropy, a, {{3}, {1}}), HasSubstr("labels' shape [1]"));
  EXPECT_THAT(Refusal(OpKind::kClip, {.minimum = 6, .maximum = 0}, {{3}}), HasSubstr("below"));
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
  EXPECT_FALSE(InferParameters(OpKind::kLinear, a, {Dims{1 << 24}}).ok());
}

TEST(OperatorsTest, ParametersHavePyTorchsBounds) {
  OperatorAttributes a;
  a.out_channels = 64;
  a.kernel = {3, 3};
  const std::vector<ParameterSpec> conv =
      InferParameters(OpKind::kConv2d, a, {Dims{32, 26, 26}}).value();
  ASSERT_EQ(conv.size(), 2u);
  EXPECT_EQ(conv[0].shape, (Dims{64, 32, 3, 3}));
  EXPECT_EQ(conv[1].shape, (Dims{64}));
  EXPECT_EQ(conv[0].init.kind(), Initializer::UNIFORM);
  EXPECT_DOUBLE_EQ(conv[0].init.value(), 1 / std::sqrt(288.0));
  EXPECT_DOUBLE_EQ(conv[1].init.value(), 1 / std::sqrt(288.0));
  const std::vector<ParameterSpec> bn =
      InferParameters(OpKind::kBatchNorm, a, {Dims{64, 5, 5}}).value();
  ASSERT_EQ(bn.size(), 4u);
  EXPECT_STREQ(bn[2].role, "running_mean");
  EXPECT_EQ(bn[2].kind, STATISTIC);
  EXPECT_EQ(bn[3].init.value(), 1);
}

}  // namespace
}  // namespace starling
