#include "common/graph/recompute.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/graph/backward.h"
#include "common/graph/builders.h"
#include "common/graph/testing/recompute_policies.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ResolvedGraph Builtin(const char* name, const ModelInput& input,
                      const std::map<std::string, int64_t>& arguments = {}) {
  BuiltinArguments map;
  for (const auto& [key, value] : arguments) map[key].set_i(value);
  return Validate(BuildBuiltin(name, map, input).value()).value();
}

ResolvedGraph Gpt(int64_t depth) {
  ModelInput input = {.sample_shape = {64}, .classes = 256};
  input.sample_type = INT32;
  input.label_shape = {64};
  input.vocabulary = 256;
  return Builtin("gpt2", input, {{"depth", depth}, {"heads", 4}, {"width", 64}});
}

// As for a device without formats and scratch, one sample at a time. In backward, products read
// their inputs and pointwise operators their output.
PlanRequest RequestFor(const ResolvedGraph& graph, const RecomputeOutline& outline) {
  PlanRequest request;
  for (const ResolvedValue& value : graph.values) {
    request.value_bytes.push_back(value.elements * sizeof(float));
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    PlanNode node;
    node.inputs = graph.nodes[i].inputs;
    node.output = graph.nodes[i].output;
    const OpKind kind = graph.nodes[i].kind;
    const bool reads_inputs = outline.product[i] || kind == OpKind::kBatchNorm ||
                              kind == OpKind::kLayerNorm || kind == OpKind::kGelu;
    node.backward_reads_input.assign(node.inputs.size(), reads_inputs);
    node.backward_reads_output = kind == OpKind::kRelu;
    node.forward_in_place = node.backward_in_place = kind == OpKind::kRelu;
    request.nodes.push_back(std::move(node));
  }
  request.backward = DeriveBackward(Differentiable(graph), static_cast<int>(graph.values.size()));
  request.host_reads = {graph.nodes.back().output, graph.logits};
  return request;
}

struct Chosen {
  absl::Status status;
  size_t peak_bytes = 0;
  double share = 0;
};

Chosen Choose(const ResolvedGraph& graph, const Recompute& policy) {
  const RecomputeOutline outline = OutlineRecompute(graph);
  PlanRequest request = RequestFor(graph, outline);
  Chosen chosen;
  chosen.status = ChooseDropped(outline, policy, &request);
  const MemoryPlan plan = PlanMemory(request);
  chosen.peak_bytes = plan.peak_bytes;
  chosen.share = RecomputedShare(outline, plan);
  return chosen;
}

std::vector<std::string> BlockEndNames(const ResolvedGraph& graph) {
  std::vector<std::string> names;
  for (int end : OutlineRecompute(graph).block_ends) names.push_back(graph.nodes[end].name);
  return names;
}

TEST(RecomputeTest, BlocksEndWhereOneValueCrosses) {
  EXPECT_THAT(BlockEndNames(Gpt(2)), ElementsAre("wte", "h.0.attn.add", "h.0.mlp.add",
                                                 "h.1.attn.add", "h.1.mlp.add", "loss"));
  // The stem with its pool, 16 residual blocks (the last with the final pool), the classifier.
  const ResolvedGraph resnet = Builtin("resnet50", {.sample_shape = {3, 64, 64}, .classes = 10});
  EXPECT_EQ(OutlineRecompute(resnet).block_ends.size(), 18u);
}

TEST(RecomputeTest, AChainIsCutBehindItsProductsWhereTheValueIsSmallest) {
  const std::vector<LayerDescription> layers = {
      {"relu", "first", {}},
      {"conv2d", "conv", {{"out_channels", int64_t{4}}, {"kernel", int64_t{3}}}},
      {"batchnorm", "norm", {}},
      {"relu", "relu", {}},
      {"maxpool2d", "pool", {{"kernel", int64_t{2}}}},
      {"flatten", "flat", {}},
      {"linear", "fc", {{"out_features", int64_t{5}}}},
      {"relu", "relu2", {}},
      {"linear", "fc2", {}},
  };
  const ResolvedGraph graph = Validate(BuildLayers({{1, 8, 8}, 3}, layers).value()).value();
  EXPECT_THAT(BlockEndNames(graph), ElementsAre("pool", "fc", "loss"));
}

TEST(RecomputeTest, WithoutAPolicyNothingIsDropped) {
  const Chosen chosen = Choose(Gpt(2), Recompute());
  EXPECT_TRUE(chosen.status.ok());
  EXPECT_EQ(chosen.share, 0);
}

TEST(RecomputeTest, EveryBlockHalvesADeepModel) {
  const ResolvedGraph gpt = Gpt(6);
  const Chosen none = Choose(gpt, Recompute());
  const Chosen each = Choose(gpt, EveryBlocks(1));
  ASSERT_TRUE(each.status.ok()) << each.status;
  EXPECT_LE(2 * each.peak_bytes, none.peak_bytes);
  EXPECT_GT(each.share, 0.3);
  EXPECT_LT(each.share, 1);
}

TEST(RecomputeTest, RunsThatDoNotGoWithTheModelAreRefused) {
  EXPECT_TRUE(Choose(Gpt(2), EveryBlocks(5)).status.ok());
  for (uint32_t blocks : {0u, 6u}) {
    const absl::Status status = Choose(Gpt(2), EveryBlocks(blocks)).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("has 6 blocks"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected 1 to 5"));
  }
  EXPECT_TRUE(CheckRecompute(OutlineRecompute(Gpt(2)), Within(1)).ok());
}

TEST(RecomputeTest, ABudgetIsKeptAtNoGreaterCostThanEveryBlockHas) {
  const ResolvedGraph graph = Gpt(6);
  const Chosen none = Choose(graph, Recompute());
  const Chosen each = Choose(graph, EveryBlocks(1));
  EXPECT_EQ(Choose(graph, Within(none.peak_bytes)).share, 0);
  for (uint64_t room : {0u, 1u, 2u, 3u}) {
    const uint64_t budget = each.peak_bytes + room * (none.peak_bytes - each.peak_bytes) / 4;
    const Chosen chosen = Choose(graph, Within(budget));
    ASSERT_TRUE(chosen.status.ok()) << chosen.status;
    EXPECT_LE(chosen.peak_bytes, budget);
    EXPECT_LE(chosen.share, each.share);
    EXPECT_GT(chosen.share, 0);
  }
  const uint64_t ample = each.peak_bytes + (none.peak_bytes - each.peak_bytes) * 3 / 4;
  EXPECT_LT(Choose(graph, Within(ample)).share, each.share / 2);
}

TEST(RecomputeTest, AnImpossibleBudgetIsRefusedWithWhatIsPossible) {
  const ResolvedGraph gpt = Gpt(4);
  const absl::Status status = Choose(gpt, Within(1000)).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(status.message());
  const std::string before = "need at least ";
  ASSERT_THAT(message, HasSubstr(before));
  const uint64_t least = std::stoull(message.substr(message.find(before) + before.size()));
  EXPECT_TRUE(Choose(gpt, Within(least)).status.ok());
}

TEST(RecomputeTest, AGraphWithHardlyAnyCutIsDroppedLightly) {
  std::vector<LayerDescription> layers;  // two parallel towers: one cut, where they join
  std::string left = "input", right = "input";
  for (int i = 0; i < 6; ++i) {
    for (std::string* tower : {&left, &right}) {
      const std::string linear = absl::StrCat("linear", layers.size());
      layers.push_back({"linear", linear, {{"out_features", int64_t{64}}}, {*tower}});
      *tower = absl::StrCat("gelu", layers.size());
      layers.push_back({"gelu", *tower, {}, {linear}});
    }
  }
  layers.push_back({"add", "sum", {}, {left, right}});
  const ResolvedGraph graph = Validate(BuildLayers({{64}, 64}, layers).value()).value();
  EXPECT_THAT(BlockEndNames(graph), ElementsAre("linear0", "loss"));
  const size_t budget = Choose(graph, Recompute()).peak_bytes * 3 / 4;
  const Chosen light = Choose(graph, Within(budget));
  ASSERT_TRUE(light.status.ok()) << light.status;
  EXPECT_LE(light.peak_bytes, budget);
  EXPECT_GT(light.share, 0);
}

TEST(RecomputeTest, CostsAreMultiplyAddsOrElementsMoved) {
  const ResolvedGraph gpt = Gpt(1);
  for (size_t i = 0; i < gpt.nodes.size(); ++i) {
    const double cost = ForwardCost(gpt, static_cast<int>(i));
    if (gpt.nodes[i].name == "h.0.mlp.c_fc") {
      EXPECT_EQ(cost, 64.0 * 64 * 4 * 64);
    } else if (gpt.nodes[i].name == "h.0.attn.attention") {
      EXPECT_EQ(cost, 64.0 * 64 * 64);
    } else if (gpt.nodes[i].name == "h.0.mlp.gelu") {
      EXPECT_EQ(cost, kMultiplyAddsPerElement * 2 * 64 * 4 * 64);
    }
  }
  const ResolvedGraph resnet = Builtin("resnet18", {.sample_shape = {3, 64, 64}, .classes = 10});
  EXPECT_EQ(ForwardCost(resnet, 0), 64.0 * 32 * 32 * 3 * 7 * 7);
}

}  // namespace
}  // namespace starling
