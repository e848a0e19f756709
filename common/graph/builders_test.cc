#include "common/graph/builders.h"

#include "common/graph/graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> NodeNames(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) names.push_back(node.name());
  return names;
}

std::vector<std::string> ParameterNames(const Graph& graph) {
  std::vector<std::string> names;
  for (const Parameter& parameter : graph.parameters()) names.push_back(parameter.name());
  return names;
}

TEST(BuildersTest, LenetIsPyTorchsMnistExample) {
  const Graph graph = BuildLenet({{1, 28, 28}, 10}).value();
  const ResolvedGraph resolved = Validate(graph).value();
  EXPECT_EQ(resolved.parameter_elements, 1'199'882);
  EXPECT_THAT(ParameterNames(graph),
              ElementsAre("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight",
                          "fc1.bias", "fc2.weight", "fc2.bias"));
  EXPECT_EQ(resolved.parameters[4].shape, (Dims{128, 9216}));
  EXPECT_EQ(resolved.values[resolved.logits].name, "fc2");
  EXPECT_THAT(BuildLenet({{64}, 10}).status().message(),
              AllOf(HasSubstr("conv1"), HasSubstr("got [64]")));
}

TEST(BuildersTest, MlpFlattensImagesOnly) {
  EXPECT_THAT(NodeNames(BuildMlp({{64}, 10}, {}).value()),
              ElementsAre("fc1", "relu1", "fc2", "relu2", "fc3", "loss"));
  const Graph graph = BuildMlp({{1, 8, 8}, 10}, {.hidden = {32}}).value();
  EXPECT_THAT(NodeNames(graph), ElementsAre("flatten", "fc1", "relu1", "fc2", "loss"));
  EXPECT_EQ(Validate(graph)->parameter_elements, 64 * 32 + 32 + 32 * 10 + 10);
  EXPECT_THAT(NodeNames(BuildMlp({{64}, 10}, {.hidden = {}}).value()), ElementsAre("fc1", "loss"));
  EXPECT_FALSE(BuildMlp({{64}, 10}, {.hidden = {0}}).ok());
}

TEST(BuildersTest, CounterHasOneRowPerSample) {
  const ResolvedGraph graph = Validate(BuildCounter(4096).value()).value();
  ASSERT_EQ(graph.parameters.size(), 1u);
  EXPECT_EQ(graph.parameters[0].name, "counter");
  EXPECT_EQ(graph.parameters[0].shape, (Dims{4096}));
  EXPECT_EQ(graph.parameters[0].init.kind(), Initializer::CONSTANT);
  EXPECT_EQ(graph.parameters[0].init.value(), 0);
  EXPECT_EQ(graph.classes, 0);
  EXPECT_FALSE(BuildCounter(0).ok());
}

TEST(BuildersTest, LayersInferNamesAndSizes) {
  const std::vector<LayerDescription> layers = {
      {"conv2d",
       "",
       {{"out_channels", int64_t{4}}, {"kernel", std::vector<int64_t>{3, 3}}, {"bias", false}}},
      {"batchnorm", "", {{"momentum", 0.2}}},
      {"avgpool2d", "pool", {{"kernel", int64_t{2}}}},
      {"flatten", "", {}},
      {"linear", "", {}},
  };
  const Graph graph = BuildLayers({{1, 8, 8}, 10}, layers).value();
  EXPECT_THAT(NodeNames(graph),
              ElementsAre("conv2d0", "batchnorm1", "pool", "flatten3", "linear4", "loss"));
  const ResolvedGraph resolved = Validate(graph).value();
  EXPECT_EQ(resolved.parameters[0].shape, (Dims{4, 1, 3, 3}));
  EXPECT_EQ(resolved.parameters[1].name, "batchnorm1.weight");
  EXPECT_EQ(resolved.parameters[3].statistic_momentum, 0.2);
  EXPECT_EQ(resolved.parameters[5].shape, (Dims{10, 36}));
}

TEST(BuildersTest, BadLayersAreNamed) {
  using Layers = std::vector<LayerDescription>;
  const ModelInput input{{64}, 10};
  EXPECT_THAT(BuildLayers(input, Layers{{"dense", "d", {}}}).status().message(),
              HasSubstr("layer 0 \"d\" (dense): unknown operator; expected one of conv2d"));
  EXPECT_THAT(BuildLayers(input, Layers{{"negative_sum", "n", {}}}).status().message(),
              HasSubstr("not a layer"));
  EXPECT_THAT(
      BuildLayers(input, Layers{{"linear", "a", {}}, {"linear", "b", {}}}).status().message(),
      AllOf(HasSubstr("layer 0 \"a\" (linear)"), HasSubstr("out_features")));
  EXPECT_THAT(BuildLayers(input, Layers{{"relu", "", {}}}).status().message(),
              HasSubstr("parameters"));
  EXPECT_FALSE(BuildLayers(input, {}).ok());
  EXPECT_THAT(BuildLayers(input, Layers{{"linear", "out", {{"out_features", int64_t{7}}}}})
                  .status()
                  .message(),
              HasSubstr("its 7 outputs are the logits, but the data has 10 classes"));
  EXPECT_THAT(BuildLayers(input, Layers{{"linear", "a", {}}, {"add", "b", {}}}).status().message(),
              HasSubstr("layer 0 \"a\" (linear)"));
  EXPECT_THAT(BuildLayers(input, Layers{{"relu", "a", {}}, {"add", "b", {}, {}, "", 12}})
                  .status()
                  .message(),
              HasSubstr("layer 1 \"b\" (add), line 12: expected 2 inputs, got 1"));
  EXPECT_THAT(BuildLayers(input, Layers{{"relu", "a", {}}, {"add", "b", {}, {"a", "c"}}})
                  .status()
                  .message(),
              HasSubstr("got \"c\""));
  EXPECT_THAT(BuildLayers(input, Layers{{"relu", "a", {}}, {"linear", "b", {}, {}, "a"}})
                  .status()
                  .message(),
              HasSubstr("expected parametersOf to name a layer before it that has parameters"));
}

TEST(BuildersTest, BranchesJoin) {
  const std::vector<LayerDescription> layers = {
      {"linear", "left", {{"out_features", int64_t{4}}}},
      {"linear", "right", {{"out_features", int64_t{4}}}, {"input"}},
      {"add", "sum", {}, {"left", "right"}},
      {"concat", "", {{"axis", int64_t{0}}}, {"sum", "input", "left"}},
      {"linear", "fc", {}},
  };
  const ResolvedGraph graph = Validate(BuildLayers({{6}, 3}, layers).value()).value();
  EXPECT_EQ(graph.nodes[1].inputs, (std::vector<int>{kInputValue}));
  EXPECT_EQ(graph.nodes[2].inputs, (std::vector<int>{OutputValue(0), OutputValue(1)}));
  EXPECT_EQ(graph.values[OutputValue(3)].shape, (Dims{14}));
  EXPECT_EQ(graph.values[OutputValue(0)].consumers, (std::vector<int>{2, 3}));
}

TEST(BuildersTest, SaysWhichLayerWasProbablyMeant) {
  EXPECT_THAT(BuildLayers({{6}, 3}, {{"liner", "fc", {}}}).status().message(),
              HasSubstr("; did you mean \"linear\"?"));
  EXPECT_THAT(
      BuildLayers({{6}, 3}, {{"linear", "fc", {{"out_feature", int64_t{3}}}}}).status().message(),
      HasSubstr("got \"out_feature\"; did you mean \"out_features\"?"));
}

TEST(BuildersTest, LossesTakeTheLabelsThatTheyCan) {
  ModelInput numbers = {{6}};
  numbers.label_type = FLOAT32;
  numbers.label_shape = {2};
  const std::vector<LayerDescription> layers = {{"linear", "fc", {}}};
  for (const char* loss : {"mean_squared_error", "binary_cross_entropy"}) {
    const Graph graph = BuildLayers(numbers, layers, loss).value();
    EXPECT_EQ(graph.nodes(1).op(), loss);
    EXPECT_EQ(graph.classes(), 0);
    EXPECT_EQ(Validate(graph)->parameters[0].shape, (Dims{2, 6}));
  }
  EXPECT_THAT(BuildLayers(numbers, layers).status().message(), HasSubstr("labels are numbers"));
  EXPECT_THAT(BuildLayers({{6}, 3}, layers, "mean_squared_error").status().message(),
              HasSubstr("labels are classes"));
  // By the names that a job file uses.
  EXPECT_THAT(BuildLayers(numbers, layers).status().message(),
              HasSubstr("softmaxCrossEntropy wants classes: expected loss: meanSquaredError or"));
  EXPECT_THAT(
      BuildLayers({{6}, 3}, layers, "binary_cross_entropy").status().message(),
      HasSubstr("binaryCrossEntropy wants numbers: expected data whose labels are numbers, or "
                "loss: softmaxCrossEntropy"));
  EXPECT_THAT(BuildLayers({{6}, 3}, layers, "relu").status().message(),
              HasSubstr("loss: expected"));
  numbers.label_shape = {};
  EXPECT_EQ(Validate(BuildLayers(numbers, layers, "mean_squared_error").value())
                ->values[kLabelValue]
                .shape,
            (Dims{1}));
}

TEST(BuildersTest, MoreLayersThanAModelMayHaveAreNotBuilt) {
  const absl::Status refused =
      BuildMlp({{4}, 3}, {.hidden = std::vector<int64_t>(200'000, 1)}).status();
  EXPECT_EQ(refused.message(), "model: expected at most 3999 layers, got 400001");
}

}  // namespace
}  // namespace starling
