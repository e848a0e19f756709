// Activation checkpointing: the same bits in less memory.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/graph/builders.h"
#include "common/graph/recompute.h"
#include "common/graph/testing/recompute_policies.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/executor/fuse.h"
#include "worker/executor/job_memory.h"
#include "worker/executor/program.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ---- The same bits ----------------------------------------------------------------------------

struct Family {
  const char* name;
  Graph graph;
  Samples32 samples;
};

constexpr int64_t kPositions = 8, kVocabulary = 11, kClasses = 3;
// An image's side: large enough that what is kept for backward outweighs one operator's workspace,
// even where the CPU must widen bf16.
constexpr int64_t kSide = 16;

Graph Gpt(double dropout) {
  ModelInput input = {.sample_shape = {kPositions}, .classes = kVocabulary};
  input.sample_type = INT32;
  input.label_shape = {kPositions};
  input.vocabulary = kVocabulary;
  BuiltinArguments arguments;
  arguments["depth"].set_i(3);
  arguments["heads"].set_i(2);
  arguments["width"].set_i(16);
  arguments["dropout"].set_f(dropout);
  return BuildBuiltin("gpt2", arguments, input).value();
}

LayerDescription Conv(const char* name, int64_t channels,
                      const std::vector<std::string>& inputs = {}) {
  return {"conv2d",
          name,
          {{"out_channels", channels}, {"kernel", int64_t{3}}, {"padding", int64_t{1}}},
          inputs};
}

// A chain of convolutions with batch norm, pools and dropout.
Graph Chain() {
  const std::vector<LayerDescription> layers = {
      Conv("conv1", 8),
      {"batchnorm", "norm1", {}},
      {"relu", "relu1", {}},
      {"dropout", "drop1", {{"rate", 0.25}}},
      Conv("conv2", 12),
      {"batchnorm", "norm2", {}},
      {"relu", "relu2", {}},
      Conv("conv3", 12),
      {"batchnorm", "norm3", {}},
      {"relu", "relu3", {}},
      Conv("conv4", 12),
      {"batchnorm", "norm4", {}},
      {"relu", "relu4", {}},
      {"maxpool2d", "pool", {{"kernel", int64_t{2}}}},
      Conv("conv5", 12),
      {"batchnorm", "norm5", {}},
      {"relu", "relu5", {}},
      {"flatten", "flat", {}},
      {"linear", "fc1", {{"out_features", int64_t{16}}}},
      {"relu", "relu6", {}},
      {"dropout", "drop2", {{"rate", 0.5}}},
      {"linear", "fc2", {}},
  };
  return BuildLayers({{2, kSide, kSide}, kClasses}, layers).value();
}

// Blocks that branch and join with sums, products, slices and concatenation.
Graph Branched() {
  const auto half = [](int64_t begin) -> std::map<std::string, LayerAttribute> {
    return {{"axis", int64_t{0}}, {"begin", begin}, {"length", int64_t{4}}};
  };
  const std::vector<LayerDescription> layers = {
      Conv("stem", 8),
      {"batchnorm", "stem_norm", {}},
      {"relu", "trunk", {}},
      Conv("a1", 8),
      {"batchnorm", "a2", {}},
      {"gelu", "a3", {}},
      Conv("b1", 8, {"trunk"}),
      {"sigmoid", "b2", {}},
      {"mul", "gate", {}, {"a3", "b2"}},
      {"add", "sum", {}, {"gate", "trunk"}},
      {"slice", "c1", half(0), {"sum"}},
      {"slice", "d1", half(4), {"sum"}},
      Conv("c2", 6, {"c1"}),
      {"tanh", "c3", {}},
      {"dropout", "d2", {{"rate", 0.3}}, {"d1"}},
      Conv("d3", 6),
      {"concat", "both", {{"axis", int64_t{0}}}, {"c3", "d3"}},
      {"batchnorm", "norm", {}},
      {"relu", "relu", {}},
      {"global_avgpool2d", "mean", {}},
      {"linear", "fc", {}},
  };
  return BuildLayers({{2, kSide, kSide}, kClasses}, layers).value();
}

std::vector<Family> Families() {
  const Samples32 images = MakeSamples(26, 2 * kSide * kSide, kClasses, 2);
  const Samples32 tokens = MakeTokens(26, kPositions, kVocabulary, 3);
  return {{"chain", Chain(), images},
          {"branched", Branched(), images},
          {"gpt", Gpt(0), tokens},
          {"gpt with dropout", Gpt(0.2), tokens}};
}

// 26 samples in 8 micro-batches of 4: one is short, one empty.
ExecutorOptions Options(int lanes, const Recompute& recompute, DataType type = DataType::kFp32) {
  ExecutorOptions options;
  options.type = type;
  options.global_batch = 32;
  options.micro_batches = 8;
  options.train_samples = {4, 2};
  options.evaluate_samples = {4, 2};
  options.lanes = lanes;
  options.seed = 5;
  options.recompute = recompute;
  return options;
}

TrainOutput Train(const Family& family, const ExecutorOptions& options, size_t* bytes) {
  TestModel model = MakeTestModel(family.graph, options);
  MemoryBatches batches(&family.samples, 4);
  TrainOnce(model, batches, {TrainRange(0, 8)}, 2);  // leaves old data in the arena
  *bytes = model.executor->planned_bytes();
  return TrainOnce(model, batches, {TrainRange(4, 4), TrainRange(0, 4)}, 3);
}

// Every run length, and budgets that require recomputation.
std::vector<Recompute> PoliciesFor(const Family& family, DataType type) {
  const ResolvedGraph graph = Validate(family.graph).value();
  const auto device = CreateCpuDevice().value();
  const Layout layout = MakeLayout(family.graph, Optimizer::default_instance()).value();
  const ExecutorOptions options = Options(1, Recompute(), type);
  const JobMemory memory(graph, layout, options, device.get());
  std::vector<Recompute> policies;
  const size_t blocks = OutlineRecompute(memory.graph()).block_ends.size();
  EXPECT_EQ(OutlineRecompute(graph).block_ends.size(), blocks);  // as the job file is checked
  for (uint32_t run = 1; run < blocks; ++run) policies.push_back(EveryBlocks(run));
  const size_t activations = memory.Plan(4, Recompute())->activation_bytes;
  size_t budgets = 0;
  for (size_t percent : {92, 85, 65}) {  // down to the minimum
    const Recompute budget = Within(activations * percent / 100);
    if (!memory.Plan(4, budget).ok() || !memory.Plan(2, budget).ok()) continue;
    policies.push_back(budget);
    ++budgets;
  }
  EXPECT_GE(budgets, 1u);
  for (const Recompute& policy : policies) {
    EXPECT_GT(memory.Plan(4, policy)->recomputed_share, 0) << RecomputeText(policy);
  }
  return policies;
}

TEST(RecomputeTest, GradientsAndStatisticsAreBitwiseTheSame) {
  for (const Family& family : Families()) {
    for (DataType type : {DataType::kFp32, DataType::kBf16}) {
      SCOPED_TRACE(absl::StrCat(family.name, " in ", DataTypeName(type)));
      size_t kept_bytes = 0;
      const TrainOutput kept = Train(family, Options(1, Recompute(), type), &kept_bytes);
      size_t least_bytes = kept_bytes;
      const std::vector<Recompute> policies = PoliciesFor(family, type);
      for (const Recompute& policy : policies) {
        for (int lanes : {1, 3}) {
          SCOPED_TRACE(RecomputeText(policy));
          size_t bytes = 0;
          const TrainOutput again = Train(family, Options(lanes, policy, type), &bytes);
          if (lanes == 1) least_bytes = std::min(least_bytes, bytes);
          for (size_t range : {0, 1}) {
            EXPECT_TRUE(SameBits(again.gradients[range], kept.gradients[range])) << range;
            EXPECT_EQ(again.result.ranges[range].loss_sum, kept.result.ranges[range].loss_sum);
          }
        }
      }
      EXPECT_LT(least_bytes, kept_bytes);
      std::printf("same bits: %zu policies of %s in %s, with 1 and 3 lanes\n", policies.size(),
                  family.name, DataTypeName(type));
    }
  }
}

TEST(RecomputeTest, SomethingRunsAgainInEveryFamily) {
  const auto device = CreateCpuDevice().value();
  for (const Family& family : Families()) {
    const ResolvedGraph graph = Validate(family.graph).value();
    const auto program =
        Program::Create(graph, device.get(), {4, true, 1, 32, EveryBlocks(1)}).value();
    std::vector<std::string> again;
    for (size_t step = 0; step < program->backward_steps().size(); ++step) {
      for (int node : program->again(static_cast<int>(step))) {
        again.push_back(graph.nodes[node].name);
      }
    }
    EXPECT_FALSE(again.empty()) << family.name;
    EXPECT_GT(program->recomputed_share(), 0);
    if (std::string(family.name) == "chain") {
      EXPECT_THAT(again, testing::IsSupersetOf({"norm1", "relu1", "drop1", "norm2", "relu2"}));
    }
    const auto evaluation =
        Program::Create(graph, device.get(), {4, false, 1, 32, EveryBlocks(1)}).value();
    EXPECT_EQ(evaluation->recomputed_share(), 0);
  }
}

// Evaluation shares the arena and drops nothing.
TEST(RecomputeTest, EvaluationIsAsItWas) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    std::vector<double> losses;
    for (const Recompute& policy : {Recompute(), EveryBlocks(1)}) {
      TestModel model = MakeTestModel(family.graph, Options(2, policy));
      std::copy(model.live().begin(), model.live().end(), model.executor->snapshot_parameters());
      MemoryBatches batches(&family.samples, 4);
      TrainOnce(model, batches, {TrainRange(0, 8)});
      OpenGate gate;
      UnitResult result;
      const std::vector<WorkRange> ranges = {{WorkPurpose::kEvaluate, 0, 0, 8}};
      ASSERT_TRUE(model.executor->Evaluate({ranges}, batches, gate, &result).ok());
      losses.push_back(result.ranges[0].loss_sum);
    }
    EXPECT_EQ(losses[0], losses[1]);
  }
}

// A slice's values may be overwritten as soon as its gradient is ready, so recomputation must not
// read them after that.
TEST(RecomputeTest, ParametersAreNotReadOnceTheirGradientIsReady) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    TrainOutput expected;
    {
      TestModel model = MakeTestModel(family.graph, Options(1, Recompute()));
      MemoryBatches batches(&family.samples, 4);
      expected = TrainOnce(model, batches, {TrainRange(0, 1)}, 3);
    }
    TestModel model = MakeTestModel(family.graph, Options(1, EveryBlocks(1)));
    MemoryBatches batches(&family.samples, 4);
    OpenGate gate;
    CollectingSink sink(&model.layout);
    sink.on_ready = [&](size_t, SliceId id) {
      const Slice& slice = model.layout.slices[id.value];
      std::fill_n(model.live().begin() + static_cast<ptrdiff_t>(slice.flat_begin), slice.elements,
                  1e30f);
    };
    UnitResult result;
    const std::vector<WorkRange> ranges = {TrainRange(0, 1)};
    ASSERT_TRUE(model.executor->Train({ranges, 3}, batches, gate, sink, &result).ok());
    EXPECT_TRUE(sink.complete(0));
    EXPECT_TRUE(SameBits(sink.gradient(0), expected.gradients[0]));
  }
}

// ---- Less memory ------------------------------------------------------------------------------

// 6 layers of width 384.
Graph LargeGpt() {
  ModelInput input = {.sample_shape = {256}, .classes = 256};
  input.sample_type = INT32;
  input.label_shape = {256};
  input.vocabulary = 256;
  BuiltinArguments arguments;
  arguments["depth"].set_i(6);
  arguments["heads"].set_i(6);
  arguments["width"].set_i(384);
  return BuildBuiltin("gpt2", arguments, input).value();
}

// Plans for one micro-batch; nothing is allocated.
void ExpectHalf(const char* name, const Graph& graph, int64_t samples, const Recompute& policy) {
  const ResolvedGraph resolved = Validate(graph).value();
  const Layout layout = MakeLayout(graph, Optimizer::default_instance()).value();
  const auto device = CreateCpuDevice().value();
  ExecutorOptions options;
  options.global_batch = samples;
  const JobMemory memory(resolved, layout, options, device.get());
  const auto none = memory.Plan(samples, Recompute());
  ASSERT_TRUE(none.ok()) << none.status();
  const auto some = memory.Plan(samples, policy);
  ASSERT_TRUE(some.ok()) << some.status();
  std::printf(
      "planned: %s %s %.1f MiB of %.1f MiB, %.0f%% of forward again\n", name,
      RecomputeText(policy).c_str(), static_cast<double>(some->activation_bytes) / (1 << 20),
      static_cast<double>(none->activation_bytes) / (1 << 20), 100 * some->recomputed_share);
  EXPECT_LE(2 * some->activation_bytes, none->activation_bytes);
  EXPECT_EQ(none->recomputed_share, 0);
  // A budget of half is met, at no higher cost.
  const auto half = memory.Plan(samples, Within(none->activation_bytes / 2));
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_LE(2 * half->activation_bytes, none->activation_bytes);
  EXPECT_LE(half->recomputed_share, some->recomputed_share);
  std::printf("planned: %s with half the bytes, %.0f%% of forward again\n", name,
              100 * half->recomputed_share);
}

// The costs of a real GPT are numbers, and apply to the graph that the device computes, which has
// fewer values than the given one.
TEST(RecomputePlanTest, AFusedGptIsOutlinedByItself) {
  const auto device = CreateCpuDevice().value();
  const ResolvedGraph given = Validate(LargeGpt()).value();
  const ResolvedGraph fused = Fuse(given, device->fusions());
  ASSERT_LT(fused.values.size(), given.values.size());
  const auto attention_costs = [](const ResolvedGraph& graph) {
    const RecomputeOutline outline = OutlineRecompute(graph);
    std::vector<double> costs;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (graph.nodes[i].kind == OpKind::kAttention) costs.push_back(outline.forward_costs[i]);
    }
    return costs;
  };
  const double cost = 256.0 * 384 * 256;  // two products of a head's width, half of them masked
  EXPECT_THAT(attention_costs(fused), testing::ElementsAre(cost, cost, cost, cost, cost, cost));
  EXPECT_EQ(attention_costs(given), attention_costs(fused));
}

TEST(RecomputePlanTest, AGptNeedsHalf) { ExpectHalf("gpt", LargeGpt(), 8, EveryBlocks(1)); }

TEST(RecomputePlanTest, AResnet50NeedsHalf) {
  ExpectHalf("resnet50",
             BuildBuiltin("resnet50", {}, {.sample_shape = {3, 224, 224}, .classes = 1000}).value(),
             32, EveryBlocks(1));
}

TEST(RecomputePlanTest, TheRefusalSaysWhichRecomputingWouldFit) {
  ExecutorOptions options = Options(2, Recompute());
  TestModel model = MakeTestModel(Gpt(0), options);
  const JobMemory memory(model.resolved, model.layout, options, model.device.get());
  const size_t most = model.executor->planned_activation_bytes();
  options.bytes_max = model.executor->planned_bytes() - most / 4;
  const auto create = [&] {
    return Executor::Create(model.resolved, model.layout, options, model.device.get(),
                            model.spans.get())
        .status();
  };
  const absl::Status refused = create();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(refused.message());
  const std::string before = "the same batch with recompute.activationBytes ";
  ASSERT_THAT(message, AllOf(HasSubstr(before), HasSubstr("; batch.global ")));
  options.recompute = Within(std::stoull(message.substr(message.find(before) + before.size())));
  EXPECT_TRUE(create().ok()) << create();  // as the message said
}

}  // namespace
}  // namespace starling
