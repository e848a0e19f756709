#include "common/graph/memory_plan.h"

#include <cstdint>
#include <random>

#include "gtest/gtest.h"

namespace starling {
namespace {

constexpr size_t kByte = 64;

// input 0; conv -> 1; relu -> 2 (in place, backward reads its output); fc -> 3; loss -> 4.
PlanRequest SmallNet() {
  PlanRequest request;
  request.value_bytes = {4 * kByte, 8 * kByte, 8 * kByte, 2 * kByte, kByte};
  request.nodes = {
      {{0}, 1, 0, 16 * kByte, false, false, {true}, false},
      {{1}, 2, 0, 0, true, true, {false}, true},
      {{2}, 3, 0, 0, false, false, {true}, false},
      {{3}, 4, 2 * kByte, 0, false, false, {false}, false},
  };
  std::vector<DifferentiableNode> nodes = {
      {{0}, 1, true}, {{1}, 2, false}, {{2}, 3, true}, {{3}, 4, false}};
  request.backward = DeriveBackward(nodes, 5);
  request.host_reads = {3, 4};
  return request;
}

TEST(MemoryPlanTest, WorksInPlaceAndKnowsLifetimes) {
  const MemoryPlan plan = PlanMemory(SmallNet());
  // Times: 0 copy, 1..4 forward, 5 host, 6 loss, 7 fc, 8 relu, 9 conv.
  EXPECT_EQ(plan.values[1].offset, plan.values[2].offset);
  EXPECT_EQ(plan.gradients[1].offset, plan.gradients[2].offset);
  EXPECT_EQ(plan.values[0].end, 9);
  EXPECT_EQ(plan.values[1].end, 2);
  EXPECT_EQ(plan.values[2].end, 8);
  EXPECT_EQ(plan.values[3].end, 5);
  EXPECT_EQ(plan.saved[3].begin, 4);
  EXPECT_EQ(plan.saved[3].end, 6);
  EXPECT_EQ(plan.gradients[2].begin, 7);
  EXPECT_EQ(plan.gradients[2].end, 8);
  EXPECT_EQ(plan.gradients[1].end, 9);
  EXPECT_EQ(plan.gradients[0].bytes, 0u);  // the input needs no gradient
  EXPECT_EQ(plan.gradients[4].bytes, 0u);  // starts in the loss
  EXPECT_EQ(plan.backward_workspace[3].bytes, 16 * kByte);
  // 28 live at once in conv's backward: input 4, gradient 8, workspace 16.
  EXPECT_EQ(plan.peak_bytes, 30 * kByte);
}

TEST(MemoryPlanTest, ForwardOnlyReusesWhatIsDead) {
  PlanRequest request = SmallNet();
  request.backward.clear();
  const MemoryPlan plan = PlanMemory(request);
  EXPECT_EQ(plan.values[2].end, 3);
  EXPECT_EQ(plan.peak_bytes, 28 * kByte);  // conv: input 4, output 8, workspace 16
  request.nodes[0].workspace_bytes = 0;
  EXPECT_EQ(PlanMemory(request).peak_bytes, 12 * kByte);
}

TEST(MemoryPlanTest, AnInputThatIsNeededAgainIsNotOverwritten) {
  PlanRequest request = SmallNet();
  request.nodes[1].backward_reads_input = {true};
  MemoryPlan plan = PlanMemory(request);
  EXPECT_NE(plan.values[1].offset, plan.values[2].offset);
  request = SmallNet();
  request.host_reads.push_back(1);
  plan = PlanMemory(request);
  EXPECT_NE(plan.values[1].offset, plan.values[2].offset);
}

TEST(MemoryPlanTest, ADroppedNodeRunsAgainBeforeTheFirstStepThatNeedsIt) {
  PlanRequest request = SmallNet();
  request.dropped = {true, true, false, false};
  const MemoryPlan plan = PlanMemory(request);
  // Times: 0 copy, 1..4 forward, 5 host, 6 loss, 7 conv again, 8 relu again, 9 fc, 10 relu, 11
  // conv.
  EXPECT_EQ(plan.again, (std::vector<std::vector<int>>{{}, {0, 1}, {}, {}}));
  EXPECT_EQ(plan.values[0].end, 11);
  EXPECT_EQ(plan.values[2].end, 3);
  EXPECT_EQ(plan.backward_values[1].begin, 7);
  EXPECT_EQ(plan.backward_values[1].end, 8);
  EXPECT_EQ(plan.backward_values[2].begin, 8);
  EXPECT_EQ(plan.backward_values[2].end, 10);
  EXPECT_EQ(plan.backward_values[1].offset, plan.backward_values[2].offset);
  EXPECT_EQ(plan.second_workspace[0].bytes, 16 * kByte);
  EXPECT_EQ(plan.backward_values[3], plan.values[3]);
  EXPECT_EQ(plan.backward_saved[3], plan.saved[3]);
}

TEST(MemoryPlanTest, OnlyWhatWasSavedIsKeptWhereItIsSmall) {
  PlanRequest request = SmallNet();
  request.nodes[2].backward_reads_input = {false};  // backward reads only `saved`
  request.nodes[1].backward_reads_output = false;
  request.dropped = {false, true, false, false};
  request.nodes[1].saved_bytes = request.value_bytes[2] / kSavedShare;
  MemoryPlan plan = PlanMemory(request);
  EXPECT_EQ(plan.again, (std::vector<std::vector<int>>(4)));
  EXPECT_EQ(plan.saved[1].end, 8);  // relu's backward
  ++request.nodes[1].saved_bytes;
  plan = PlanMemory(request);
  EXPECT_EQ(plan.again, (std::vector<std::vector<int>>{{}, {}, {1}, {}}));
  EXPECT_EQ(plan.saved[1].end, 2);
  EXPECT_EQ(plan.backward_saved[1].begin, 8);
  EXPECT_EQ(plan.backward_saved[1].end, 9);
}

TEST(MemoryPlanTest, DroppingHalvesTheMemoryOfADeepChain) {
  PlanRequest request;
  constexpr int kNodes = 64, kSegment = 8;
  request.value_bytes.assign(kNodes + 1, 10 * kByte);
  std::vector<DifferentiableNode> nodes;
  for (int i = 0; i < kNodes; ++i) {
    request.nodes.push_back({{i}, i + 1, 0, 0, false, false, {true}, false});
    nodes.push_back({{i}, i + 1, true});
    request.dropped.push_back(i % kSegment != kSegment - 1 && i < kNodes - kSegment);
  }
  request.backward = DeriveBackward(nodes, kNodes + 1);
  request.host_reads = {kNodes};
  const size_t less = PlanMemory(request).peak_bytes;
  request.dropped.clear();
  EXPECT_GE(PlanMemory(request).peak_bytes, kNodes * 10 * kByte);
  EXPECT_LE(less, (kNodes / kSegment + kSegment + 4) * 10 * kByte);
}

// ---- Random graphs ----------------------------------------------------------------------------

PlanRequest RandomRequest(std::mt19937& random) {
  auto pick = [&random](int n) { return static_cast<int>(random() % n); };
  PlanRequest request;
  request.value_bytes.push_back(1 + pick(1000));
  std::vector<DifferentiableNode> nodes;
  const int count = 2 + pick(20);
  for (int i = 0; i < count; ++i) {
    PlanNode node;
    node.output = i + 1;
    // Mostly chains, with some branches and joins; sizes are often equal, so that nodes work in
    // place.
    node.inputs.push_back(pick(4) == 0 ? pick(i + 1) : i);
    if (pick(3) == 0) node.inputs.push_back(pick(i + 1));
    request.value_bytes.push_back(pick(2) == 0 ? 1 + pick(1000)
                                               : request.value_bytes[node.inputs[0]]);
    node.saved_bytes = pick(2) * pick(500);
    node.workspace_bytes = pick(2) * pick(2000);
    node.forward_in_place = pick(2) == 0;
    node.backward_in_place = pick(2) == 0;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      node.backward_reads_input.push_back(pick(2) == 0);
    }
    node.backward_reads_output = pick(2) == 0;
    nodes.push_back({node.inputs, node.output, pick(2) == 0});
    request.nodes.push_back(std::move(node));
  }
  if (pick(4) != 0) request.backward = DeriveBackward(nodes, count + 1);
  request.host_reads = {count, pick(count + 1)};
  if (pick(2) == 0) {
    const int share = 1 + pick(4);
    for (int i = 0; i < count; ++i) request.dropped.push_back(pick(4) < share);
  }
  return request;
}

// Runs the plan: each write tags its block, and every read must find the writer's tag.
class Interpreter {
 public:
  Interpreter(const PlanRequest& request, const MemoryPlan& plan)
      : request_(request), plan_(plan), memory_(plan.peak_bytes, 0) {}

  void Run() {
    const int nodes = static_cast<int>(request_.nodes.size());
    Write(plan_.values[0], ValueTag(0));
    for (int i = 0; i < nodes; ++i) Forward(i, plan_.values, plan_.saved, plan_.forward_workspace);
    for (int value : request_.host_reads) Expect(plan_.values[value], ValueTag(value), "host");
    for (size_t step = 0; step < request_.backward.size(); ++step) {
      for (int i : plan_.again[step]) {
        Forward(i, plan_.backward_values, plan_.backward_saved, plan_.second_workspace);
      }
      Backward(step);
    }
  }

 private:
  static uint32_t ValueTag(int value) { return 1000 + value; }
  static uint32_t SavedTag(int node) { return 2000 + node; }
  static uint32_t GradientTag(int value) { return 3000 + value; }

  void Write(const Block& block, uint32_t tag) {
    ASSERT_LE(block.offset + block.bytes, memory_.size());
    EXPECT_EQ(block.offset % kBlockAlignment, 0u);
    for (size_t i = 0; i < block.bytes; ++i) memory_[block.offset + i] = tag;
  }

  void Expect(const Block& block, uint32_t tag, const char* what) {
    ASSERT_LE(block.offset + block.bytes, memory_.size());
    for (size_t i = 0; i < block.bytes; ++i) ASSERT_EQ(memory_[block.offset + i], tag) << what;
  }

  void Forward(int i, const std::vector<Block>& values, const std::vector<Block>& saved,
               const std::vector<Block>& workspace) {
    const PlanNode& node = request_.nodes[i];
    Write(workspace[i], 9);
    // Inputs must survive the forward: only an allowed in-place output may overlap its input.
    for (int input : node.inputs) Expect(values[input], ValueTag(input), "forward input");
    const Block& output = values[node.output];
    Write(saved[i], SavedTag(i));
    const bool in_place = node.forward_in_place && output.offset == values[node.inputs[0]].offset &&
                          output.bytes == values[node.inputs[0]].bytes;
    Write(output, ValueTag(node.output));
    for (size_t k = in_place ? 1 : 0; k < node.inputs.size(); ++k) {
      Expect(values[node.inputs[k]], ValueTag(node.inputs[k]), "input under output");
    }
    Expect(saved[i], SavedTag(i), "saved under output");
  }

  void Backward(size_t step) {
    const BackwardStep& backward = request_.backward[step];
    const PlanNode& node = request_.nodes[backward.node];
    const bool loss = backward.node + 1 == static_cast<int>(request_.nodes.size());
    Write(plan_.backward_workspace[step], 9);
    const Block& output_gradient = plan_.gradients[node.output];
    auto reads = [&](bool overwritten) {
      if (!loss && !overwritten) {
        ASSERT_GT(output_gradient.bytes, 0u);
        Expect(output_gradient, GradientTag(node.output), "output's gradient");
      }
      Expect(plan_.backward_saved[backward.node], SavedTag(backward.node), "saved");
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!node.backward_reads_input[i]) continue;
        Expect(plan_.backward_values[node.inputs[i]], ValueTag(node.inputs[i]), "backward input");
      }
      if (node.backward_reads_output) {
        Expect(plan_.backward_values[node.output], ValueTag(node.output), "backward output");
      }
    };
    reads(false);
    bool overwritten = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int value = node.inputs[i];
      if (backward.inputs[i] == GradientUse::kWrite) {
        const Block& gradient = plan_.gradients[value];
        ASSERT_GT(gradient.bytes, 0u);
        overwritten |=
            i == 0 && node.backward_in_place && gradient.offset == output_gradient.offset;
        Write(gradient, GradientTag(value));
      } else if (backward.inputs[i] == GradientUse::kAdd) {
        Write(plan_.aside[step][i], 8);
      }
    }
    reads(overwritten);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (backward.inputs[i] == GradientUse::kNone) continue;
      Expect(plan_.gradients[node.inputs[i]], GradientTag(node.inputs[i]), "gradient");
      if (backward.inputs[i] == GradientUse::kAdd) Expect(plan_.aside[step][i], 8, "aside");
    }
  }

  const PlanRequest& request_;
  const MemoryPlan& plan_;
  std::vector<uint32_t> memory_;  // one tag per byte
};

TEST(MemoryPlanTest, RandomGraphsNeverOverwriteWhatIsStillNeeded) {
  std::mt19937 random(1);
  int in_place = 0, again = 0;
  for (int round = 0; round < 500; ++round) {
    const PlanRequest request = RandomRequest(random);
    const MemoryPlan plan = PlanMemory(request);
    ASSERT_EQ(plan, PlanMemory(request)) << "not deterministic";
    Interpreter(request, plan).Run();
    ASSERT_FALSE(HasFailure()) << "round " << round;
    for (const PlanNode& node : request.nodes) {
      in_place += plan.values[node.output].offset == plan.values[node.inputs[0]].offset &&
                  plan.values[node.output].begin == plan.values[node.inputs[0]].end;
    }
    for (const std::vector<int>& nodes : plan.again) again += static_cast<int>(nodes.size());
  }
  EXPECT_GT(in_place, 100);  // the random plans do reuse memory
  EXPECT_GT(again, 500);     // ... and do recompute
}

}  // namespace
}  // namespace starling
