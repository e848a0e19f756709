#include "worker/executor/fuse.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/graph/builders.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/executor/program.h"

namespace starling {
namespace {

using ::testing::ElementsAre;

constexpr Fusions kAll = {.batchnorm = true, .packed_attention = true, .linear_gelu = true};

ResolvedGraph Builtin(const std::string& name, const BuiltinArguments& arguments,
                      const ModelInput& input) {
  return Validate(BuildBuiltin(name, arguments, input).value()).value();
}

ResolvedGraph Layers(const std::vector<LayerDescription>& layers) {
  return Validate(BuildLayers({.sample_shape = {4, 8, 8}, .classes = 3}, layers).value()).value();
}

std::vector<std::string> Names(const ResolvedGraph& graph) {
  std::vector<std::string> names;
  for (const ResolvedNode& node : graph.nodes) names.push_back(node.name);
  return names;
}

const ResolvedNode& Find(const ResolvedGraph& graph, const std::string& name) {
  return *std::find_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const ResolvedNode& node) { return node.name == name; });
}

// What Validate guarantees for any graph, where Fuse rewrites it.
void ExpectConsistent(const ResolvedGraph& graph) {
  ASSERT_EQ(graph.values.size(), graph.nodes.size() + 2);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const int index = static_cast<int>(i);
    const ResolvedNode& node = graph.nodes[i];
    EXPECT_EQ(node.output, OutputValue(index)) << node.name;
    EXPECT_EQ(graph.values[node.output].producer, index) << node.name;
    for (int input : node.inputs) {
      EXPECT_LT(input, node.output) << node.name;
      const std::vector<int>& consumers = graph.values[input].consumers;
      EXPECT_EQ(std::count(consumers.begin(), consumers.end(), index),
                std::count(node.inputs.begin(), node.inputs.end(), input))
          << node.name;
    }
    for (int p : node.parameters) {
      const std::vector<int>& users = graph.parameters[p].users;
      EXPECT_EQ(std::count(users.begin(), users.end(), index), 1) << node.name;
    }
  }
}

TEST(FuseTest, ABatchNormTakesWhatIsBehindIt) {
  BuiltinArguments arguments;
  arguments["stem"].set_s("cifar");
  const ResolvedGraph given = Builtin("resnet18", arguments, {{3, 32, 32}, 10});
  const ResolvedGraph fused = Fuse(given, kAll);
  ExpectConsistent(fused);
  // 17 ReLUs and 8 additions are gone; 20 convolutions, their batch norms, the pool, the classifier
  // and the loss remain.
  EXPECT_EQ(given.nodes.size(), 68u);
  EXPECT_EQ(fused.nodes.size(), 43u);

  const ResolvedNode& plain = Find(fused, "layer2.0.downsample.1");
  EXPECT_FALSE(plain.attributes.relu);
  EXPECT_EQ(plain.inputs.size(), 1u);
  const ResolvedNode& rectified = Find(fused, "layer2.0.bn1");
  EXPECT_TRUE(rectified.attributes.relu);
  EXPECT_EQ(rectified.inputs.size(), 1u);
  const ResolvedNode& whole = Find(fused, "layer2.0.bn2");
  EXPECT_TRUE(whole.attributes.relu);
  ASSERT_EQ(whole.inputs.size(), 2u);
  EXPECT_EQ(whole.inputs[0], Find(fused, "layer2.0.conv2").output);
  EXPECT_EQ(whole.inputs[1], plain.output);
  EXPECT_EQ(Find(fused, "layer2.1.conv1").inputs[0], whole.output);
  EXPECT_EQ(fused.logits, Find(fused, "fc").output);
}

TEST(FuseTest, NothingIsJoinedThatADeviceHasNoKernelFor) {
  const ResolvedGraph given = Builtin("resnet18", {}, {{3, 64, 64}, 10});
  const ResolvedGraph fused = Fuse(given, {});
  ExpectConsistent(fused);
  EXPECT_EQ(fused.nodes.size(), given.nodes.size());
}

TEST(FuseTest, AReluWaitsForTheMaximum) {
  const ResolvedGraph given = Builtin("lenet", {}, {{1, 28, 28}, 10});
  const ResolvedGraph fused = Fuse(given, {});
  ExpectConsistent(fused);
  EXPECT_THAT(Names(fused), ElementsAre("conv1", "relu1", "conv2", "pool", "relu2", "dropout1",
                                        "flatten", "fc1", "relu3", "dropout2", "fc2", "loss"));
  EXPECT_EQ(fused.values[Find(fused, "pool").output].shape, (Dims{64, 12, 12}));
  EXPECT_EQ(fused.values[Find(fused, "pool").output].elements, 64 * 12 * 12);
  // Random numbers stay those of the given graph.
  EXPECT_EQ(Find(fused, "dropout2").number, Find(given, "dropout2").number);
}

ResolvedGraph TwoBlocksOfGpt2() {
  BuiltinArguments arguments;
  arguments["depth"].set_i(2);
  arguments["heads"].set_i(2);
  arguments["width"].set_i(8);
  ModelInput input;
  input.sample_shape = input.label_shape = {5};
  input.sample_type = INT32;
  input.vocabulary = input.classes = 11;
  return Builtin("gpt2", arguments, input);
}

TEST(FuseTest, AttentionReadsWhatItsSlicesWereCutFrom) {
  const ResolvedGraph given = TwoBlocksOfGpt2();
  const ResolvedGraph fused = Fuse(given, {.packed_attention = true});
  ExpectConsistent(fused);
  EXPECT_EQ(fused.nodes.size(), given.nodes.size() - 6);
  const ResolvedNode& attention = Find(fused, "h.1.attn.attention");
  EXPECT_THAT(attention.inputs, ElementsAre(Find(fused, "h.1.attn.c_attn").output));
  EXPECT_EQ(Fuse(given, {}).nodes.size(), given.nodes.size());
}

TEST(FuseTest, ALinearTakesTheGeluBehindIt) {
  const ResolvedGraph given = TwoBlocksOfGpt2();
  const ResolvedGraph fused = Fuse(given, {.linear_gelu = true});
  ExpectConsistent(fused);
  EXPECT_EQ(fused.nodes.size(), given.nodes.size() - 2);
  const ResolvedNode& first = Find(fused, "h.1.mlp.c_fc");
  EXPECT_TRUE(first.attributes.gelu);
  EXPECT_EQ(first.parameters, Find(given, "h.1.mlp.c_fc").parameters);
  const ResolvedNode& second = Find(fused, "h.1.mlp.c_proj");
  EXPECT_FALSE(second.attributes.gelu);
  EXPECT_THAT(second.inputs, ElementsAre(first.output));
  EXPECT_EQ(KernelSpec(fused, fused.values[first.output].producer, {}).attributes.at("gelu"),
            AttributeValue(int64_t{1}));
}

TEST(FuseTest, OnlyTheGeluThatADeviceHasIsJoined) {
  const auto nodes_left = [](bool approximate, const std::vector<std::string>& add) {
    const ResolvedGraph given = Layers({
        {"flatten", "flatten", {}},
        {"linear", "hidden", {{"out_features", int64_t{24}}}},
        {"gelu", "gelu", {{"approximate", approximate}}},
        {"add", "add", {}, add},
        {"linear", "fc", {}},
    });
    const ResolvedGraph fused = Fuse(given, kAll);
    ExpectConsistent(fused);
    return fused.nodes.size();
  };
  EXPECT_EQ(nodes_left(true, {"gelu", "gelu"}), 5u);
  EXPECT_EQ(nodes_left(false, {"gelu", "gelu"}), 6u) << "x * Phi(x) is another function";
  EXPECT_EQ(nodes_left(true, {"gelu", "hidden"}), 6u) << "the sum reads what lies between";
}

TEST(FuseTest, OfTwoGelusOneStays) {
  const ResolvedGraph given = Layers({
      {"flatten", "flatten", {}},
      {"linear", "hidden", {{"out_features", int64_t{24}}}},
      {"gelu", "first", {{"approximate", true}}},
      {"gelu", "second", {{"approximate", true}}},
      {"linear", "fc", {}},
  });
  const ResolvedGraph fused = Fuse(given, kAll);
  ExpectConsistent(fused);
  EXPECT_EQ(fused.nodes.size(), given.nodes.size() - 1);
  EXPECT_EQ(Find(fused, "second").inputs[0], Find(fused, "hidden").output);
}

TEST(FuseTest, WhatSomebodyElseReadsStays) {
  // The sum reads the batch norm, too, and the second pool the ReLU.
  const ResolvedGraph given = Layers({
      {"batchnorm", "bn", {}},
      {"relu", "relu", {}, {"bn"}},
      {"maxpool2d", "pool", {{"kernel", int64_t{2}}}, {"relu"}},
      {"add", "add", {}, {"relu", "bn"}},
      {"maxpool2d", "pool2", {{"kernel", int64_t{2}}}, {"add"}},
      {"add", "add2", {}, {"pool", "pool2"}},
      {"flatten", "flatten", {}},
      {"linear", "fc", {}},
  });
  const ResolvedGraph fused = Fuse(given, kAll);
  ExpectConsistent(fused);
  EXPECT_EQ(Names(fused), Names(given));
}

TEST(FuseTest, FrozenStatisticsStayAlone) {
  const std::vector<LayerDescription> layers = {
      {"batchnorm", "bn", {}},
      {"relu", "relu", {}},
      {"flatten", "flatten", {}},
      {"linear", "fc", {}},
  };
  Graph graph = BuildLayers({.sample_shape = {4, 8, 8}, .classes = 3}, layers).value();
  EXPECT_EQ(Fuse(Validate(graph).value(), kAll).nodes.size(), 4u);
  for (Parameter& parameter : *graph.mutable_parameters()) {
    if (parameter.name().rfind("bn.", 0) == 0) parameter.set_kind(FROZEN);
  }
  EXPECT_EQ(Fuse(Validate(graph).value(), kAll).nodes.size(), 5u);
}

}  // namespace
}  // namespace starling
