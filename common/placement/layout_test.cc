#include "common/placement/layout.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "common/placement/shard_memory_plan.h"
#include "common/protocol/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

void AddLayer(Graph* graph, const std::string& name, std::vector<int64_t> weight, int64_t bias) {
  Node* node = graph->add_nodes();
  node->set_name(name);
  for (const auto& [suffix, shape] :
       {std::pair(".weight", weight), std::pair(".bias", std::vector<int64_t>{bias})}) {
    Parameter* parameter = graph->add_parameters();
    parameter->set_name(name + suffix);
    parameter->set_kind(TRAINABLE);
    for (const int64_t dim : shape) parameter->add_shape(dim);
    node->add_parameters(parameter->name());
  }
}

void AddStatistic(Graph* graph, const std::string& name, int64_t elements, double momentum) {
  Parameter* parameter = graph->add_parameters();
  parameter->set_name(name);
  parameter->set_kind(STATISTIC);
  parameter->add_shape(elements);
  parameter->set_statistic_momentum(momentum);
}

Graph Lenet() {
  Graph graph;
  AddLayer(&graph, "conv1", {32, 1, 3, 3}, 32);
  AddStatistic(&graph, "norm.mean", 32, 0.1);
  AddStatistic(&graph, "norm.variance", 32, 0.1);
  AddLayer(&graph, "conv2", {64, 32, 3, 3}, 64);
  AddLayer(&graph, "dense", {128, 9216}, 128);
  AddLayer(&graph, "logits", {10, 128}, 10);
  return graph;
}

uint32_t PartitionElements(const Layout& layout, PartitionId partition) {
  uint32_t sum = 0;
  for (const SliceId slice : layout.partitions[partition.value]) {
    sum += layout.slices[slice.value].elements;
  }
  return sum;
}

void CheckInvariants(const Graph& graph, const Layout& layout) {
  uint64_t flat = 0;
  std::vector<uint64_t> placed(layout.parameters.size(), 0);
  for (uint32_t s = 0; s < layout.slices.size(); ++s) {
    const Slice& slice = layout.slices[s];
    EXPECT_EQ(slice.id.value, s);
    EXPECT_EQ(slice.flat_begin, flat);
    EXPECT_GT(slice.elements, 0u);
    EXPECT_LE(slice.elements, limits::kSliceElementsMax);
    uint32_t in_slice = 0;
    for (const Segment& segment : slice.segments) {
      const ParameterPlace& place = layout.parameters[segment.param];
      EXPECT_EQ(segment.slice_begin, in_slice);
      EXPECT_EQ(segment.param_begin, placed[segment.param]);
      EXPECT_EQ(slice.flat_begin + segment.slice_begin, place.flat_begin + segment.param_begin);
      EXPECT_EQ(graph.parameters(segment.param).kind(), slice.kind);
      EXPECT_GE(s, place.first_slice.value);
      EXPECT_LE(s, place.last_slice.value);
      in_slice += segment.length;
      placed[segment.param] += segment.length;
    }
    EXPECT_EQ(in_slice, slice.elements);
    flat += slice.elements;
  }
  EXPECT_EQ(flat, layout.elements);
  for (size_t p = 0; p < placed.size(); ++p) EXPECT_EQ(placed[p], layout.parameters[p].elements);
  size_t in_partitions = 0;
  for (uint32_t p = 0; p < layout.partitions.size(); ++p) {
    EXPECT_FALSE(layout.partitions[p].empty());
    for (const SliceId id : layout.partitions[p])
      EXPECT_EQ(layout.slices[id.value].partition.value, p);
    in_partitions += layout.partitions[p].size();
  }
  EXPECT_EQ(in_partitions, layout.slices.size());
}

TEST(LayoutTest, LenetIsSixTrainableSlicesAndOneOfStatistics) {
  const Graph graph = Lenet();
  const Layout layout = MakeLayout(graph).value();
  CheckInvariants(graph, layout);
  EXPECT_EQ(layout.elements, 1'199'882u + 64u);
  ASSERT_EQ(layout.slices.size(), 7u);
  EXPECT_EQ(layout.slices[5].elements,
            1290u);  // the logits', since the dense layer ends with an eighth
  EXPECT_EQ(layout.slices[6].kind, STATISTIC);
  EXPECT_EQ(layout.slices[6].elements, 64u);
  EXPECT_EQ(layout.partitions.size(), 7u);
}

TEST(LayoutTest, ASliceClosesAtAnOperatorsEndOnceItHoldsAnEighth) {
  Graph graph;
  AddLayer(&graph, "a", {10, 10}, 10);  // 110 of 250 elements: closes
  AddLayer(&graph, "b", {2, 4}, 2);     // 10: below an eighth, stays open
  AddLayer(&graph, "c", {12, 10}, 10);
  const Layout layout = MakeLayout(graph).value();
  CheckInvariants(graph, layout);
  ASSERT_EQ(layout.slices.size(), 2u);
  EXPECT_EQ(layout.slices[0].elements, 110u);
  EXPECT_EQ(layout.slices[1].elements, 140u);
}

TEST(LayoutTest, StatisticsOfDifferentMomentumDoNotShareASlice) {
  Graph graph = Lenet();
  AddStatistic(&graph, "other.mean", 16, 0.01);
  const Layout layout = MakeLayout(graph).value();
  CheckInvariants(graph, layout);
  ASSERT_EQ(layout.slices.size(), 8u);
  EXPECT_EQ(layout.slices[6].statistic_momentum, 0.1);
  EXPECT_EQ(layout.slices[7].statistic_momentum, 0.01);
}

TEST(LayoutTest, LargeModelsHave64BalancedPartitions) {
  Graph graph;
  for (int i = 0; i < 24; ++i)
    AddLayer(&graph, "layer" + std::to_string(i), {1024, 1000 + 37 * i}, 1024);
  const Layout layout = MakeLayout(graph).value();
  CheckInvariants(graph, layout);
  ASSERT_EQ(layout.partitions.size(), 64u);
  for (uint32_t p = 0; p < 64; ++p) {
    EXPECT_NEAR(PartitionElements(layout, PartitionId(p)), layout.elements / 64.0,
                limits::kSliceElementsMax);
  }
}

// Its counts and its last updates, in both states of a partition.
TEST(LayoutTest, WhatIsKnownOfASliceIsPlanned) {
  JobSpec spec;
  spec.mutable_batch()->set_global(8);
  Layout layout;
  layout.partitions.resize(1);
  const auto planned = [&] { return PlannedPartitionBytes(spec, 8, layout, PartitionId(0)); };
  const uint64_t without = planned();
  for (uint32_t id = 0; id < 10; ++id) {
    layout.slices.emplace_back().kind = FROZEN;
    layout.partitions[0].push_back(SliceId(id));
  }
  EXPECT_GE(planned(), without + 10 * 2 * sizeof(Lsn) * limits::kSliceUpdatesRemembered);
}

TEST(LayoutTest, TheDigestSeesNamesShapesAndKinds) {
  const uint64_t digest = MakeLayout(Lenet()).value().digest;
  EXPECT_EQ(MakeLayout(Lenet()).value().digest, digest);
  Graph renamed = Lenet();
  renamed.mutable_parameters(0)->set_name("conv0.weight");
  EXPECT_NE(MakeLayout(renamed).value().digest, digest);
  Graph larger = Lenet();
  larger.mutable_parameters(0)->set_shape(0, 33);
  EXPECT_NE(MakeLayout(larger).value().digest, digest);
  Graph frozen = Lenet();
  frozen.mutable_parameters(0)->set_kind(FROZEN);
  CheckInvariants(frozen, MakeLayout(frozen).value());
  EXPECT_NE(MakeLayout(frozen).value().digest, digest);
}

TEST(LayoutTest, BadParametersAreNamed) {
  EXPECT_THAT(MakeLayout(Graph()).status().message(), HasSubstr("no parameters"));
  Graph graph = Lenet();
  graph.mutable_parameters(1)->set_shape(0, 0);
  EXPECT_THAT(MakeLayout(graph).status().message(), HasSubstr("\"conv1.bias\": has dimension 0"));
  graph = Lenet();
  graph.mutable_parameters(0)->set_shape(0, int64_t{1} << 62);
  EXPECT_THAT(MakeLayout(graph).status().message(), HasSubstr("more than 8589934592 elements"));
  graph = Lenet();
  graph.mutable_parameters(0)->set_kind(PARAMETER_KIND_UNSPECIFIED);
  EXPECT_THAT(MakeLayout(graph).status().message(),
              HasSubstr("expected trainable, statistic or frozen"));
}

Optimizer::Group* AddGroup(Optimizer* optimizer, const std::string& glob) {
  Optimizer::Group* group = optimizer->add_groups();
  if (!glob.empty()) group->add_match(glob);
  return group;
}

TEST(GroupsTest, TheFirstGroupThatHasAParameterCounts) {
  Optimizer optimizer;
  AddGroup(&optimizer, "conv1.*")->set_rate_scale(0.5);
  AddGroup(&optimizer, "")->set_vectors(true);
  AddGroup(&optimizer, "*.weight");
  optimizer.mutable_groups(1)->set_weight_decay(0);
  optimizer.set_weight_decay(0.1);
  const Graph graph = Lenet();
  const auto group_of = [&](const std::string& name) {
    for (const Parameter& parameter : graph.parameters()) {
      if (parameter.name() == name) return GroupOf(optimizer, parameter);
    }
    return GroupIndex{-2};
  };
  EXPECT_EQ(group_of("conv1.weight"), 0);
  EXPECT_EQ(group_of("conv1.bias"), 0);
  EXPECT_EQ(group_of("conv2.bias"), 1);
  EXPECT_EQ(group_of("dense.weight"), 2);
  EXPECT_EQ(SettingsOf(optimizer, 0).rate_scale, 0.5);
  EXPECT_EQ(SettingsOf(optimizer, 0).weight_decay, 0.1);
  EXPECT_EQ(SettingsOf(optimizer, 1).rate_scale, 1);
  EXPECT_EQ(SettingsOf(optimizer, 1).weight_decay, 0);
  EXPECT_EQ(SettingsOf(optimizer, kNoGroup).weight_decay, 0.1);
}

TEST(GroupsTest, SlicesHoldOneGroupEach) {
  Optimizer optimizer;
  AddGroup(&optimizer, "")->set_vectors(true);
  const Graph graph = Lenet();
  const Layout layout = MakeLayout(graph, optimizer).value();
  CheckInvariants(graph, layout);
  EXPECT_NE(layout.digest, MakeLayout(graph).value().digest);
  int of_vectors = 0;
  for (const Slice& slice : layout.slices) {
    for (const Segment& segment : slice.segments) {
      const Parameter& parameter = graph.parameters(static_cast<int>(segment.param));
      const bool vector = parameter.kind() == TRAINABLE && parameter.shape_size() == 1;
      EXPECT_EQ(slice.group, vector ? 0 : kNoGroup) << parameter.name();
    }
    of_vectors += slice.group == 0 ? 1 : 0;
  }
  EXPECT_EQ(of_vectors, 1);              // all four biases
  EXPECT_EQ(layout.slices[1].group, 0);  // where the first bias is
  EXPECT_EQ(layout.slices[1].elements, 32u + 64 + 128 + 10);
}

// Weights fill several slices while another group's slice stays open.
TEST(GroupsTest, ParametersStayContiguous) {
  Graph graph;
  AddLayer(&graph, "a", {100, 100}, 100);
  AddLayer(&graph, "b", {700, 1000}, 700);
  AddLayer(&graph, "c", {10, 10}, 300'000);  // a vector larger than a slice
  AddLayer(&graph, "d", {700, 1000}, 700);
  Optimizer optimizer;
  AddGroup(&optimizer, "*.bias");
  CheckInvariants(graph, MakeLayout(graph, optimizer).value());
  AddGroup(&optimizer, "b.*");
  CheckInvariants(graph, MakeLayout(graph, optimizer).value());
}

TEST(GroupsTest, AGlobThatMatchesNothingIsRefused) {
  Optimizer optimizer;
  AddGroup(&optimizer, "*.bias")->add_match("conv3.*");
  EXPECT_THAT(MakeLayout(Lenet(), optimizer).status().message(),
              HasSubstr("optimizer.groups[0]: \"conv3.*\" matches no trainable parameter"));
  optimizer.clear_groups();
  AddGroup(&optimizer, "norm.*");  // exists, but is not trained
  EXPECT_FALSE(MakeLayout(Lenet(), optimizer).ok());
}

std::vector<ShardId> Assign(const Layout& layout, const std::vector<ShardLoad>& shards) {
  std::vector<uint64_t> elements;
  for (uint32_t p = 0; p < layout.partitions.size(); ++p) {
    elements.push_back(PartitionElements(layout, PartitionId(p)));
  }
  return AssignPartitions(elements, elements, shards);
}

TEST(AssignPartitionsTest, BalancedOverAnyNumberOfShards) {
  Graph graph;
  for (int i = 0; i < 24; ++i)
    AddLayer(&graph, "layer" + std::to_string(i), {1024, 1000 + 37 * i}, 1024);
  const Layout layout = MakeLayout(graph).value();
  for (uint32_t shards = 1; shards <= 9; ++shards) {
    std::vector<ShardLoad> ids;
    for (uint32_t i = 0; i < shards; ++i) ids.push_back({ShardId(10 + i), 1'000'000'000 * i});
    const std::vector<ShardId> placed = Assign(layout, ids);
    ASSERT_EQ(placed.size(), layout.partitions.size());
    std::vector<double> load(shards, 0);
    for (uint32_t p = 0; p < placed.size(); ++p) {
      load[placed[p].value - 10] += PartitionElements(layout, PartitionId(p));
    }
    const auto [least, most] = std::minmax_element(load.begin(), load.end());
    EXPECT_LE(*most - *least, 2.0 * limits::kSliceElementsMax) << shards << " shards";
  }
}

// Total load breaks ties, so small jobs do not all go to the first shard.
TEST(AssignPartitionsTest, SmallJobsGoWhereLeastIs) {
  Graph graph;
  AddLayer(&graph, "big", {64, 48}, 1);
  AddLayer(&graph, "small", {16, 8}, 1);
  const Layout layout = MakeLayout(graph).value();
  ASSERT_GT(layout.partitions.size(), 1u);
  std::vector<ShardLoad> shards = {{ShardId(1)}, {ShardId(2)}, {ShardId(3)}};
  for (int job = 0; job < 180; ++job) {
    const std::vector<ShardId> placed = Assign(layout, shards);
    EXPECT_EQ(placed, Assign(layout, shards));
    for (uint32_t p = 0; p < placed.size(); ++p) {
      shards[placed[p].value - 1].elements += PartitionElements(layout, PartitionId(p));
    }
  }
  const auto [least, most] =
      std::minmax({shards[0].elements, shards[1].elements, shards[2].elements});
  EXPECT_LE(most - least, layout.elements);
}

TEST(AssignPartitionsTest, NoShardGetsMoreThanItHasRoomFor) {
  const std::vector<uint64_t> elements = {10, 10, 4}, bytes = {120, 120, 48};
  const auto placed = [&](uint64_t first, uint64_t second) {
    std::vector<uint32_t> ids;
    for (const ShardId id :
         AssignPartitions(elements, bytes, {{ShardId(1), 0, first}, {ShardId(2), 0, second}})) {
      ids.push_back(id.value);
    }
    return ids;
  };
  EXPECT_THAT(placed(1000, 1000), testing::ElementsAre(1, 2, 1));
  EXPECT_THAT(placed(167, 1000), testing::ElementsAre(1, 2, 2));
  EXPECT_THAT(placed(100, 288), testing::ElementsAre(2, 2, 1));
  EXPECT_THAT(placed(0, 288), testing::ElementsAre(2, 2, 2));
  EXPECT_THAT(placed(119, 200), testing::ElementsAre());
  EXPECT_THAT(placed(140, 147), testing::ElementsAre());
}

TEST(AssignSubtreesTest, CoversExactlyOnceAlignedBalancedAndRotating) {
  for (uint32_t members = 1; members <= 9; ++members) {
    for (uint32_t micro_batches = 1; micro_batches <= 64; micro_batches *= 2) {
      std::vector<uint64_t> total(members, 0);
      for (uint64_t step = 0; step < members; ++step) {
        std::vector<int> seen(micro_batches, 0);
        for (uint32_t m = 0; m < members; ++m) {
          uint32_t load = 0;
          for (const Subtree& piece : AssignSubtrees(step, m, members, micro_batches)) {
            EXPECT_EQ(piece.count & (piece.count - 1), 0u);
            EXPECT_EQ(piece.first % piece.count, 0u);
            for (uint32_t i = 0; i < piece.count; ++i) ++seen.at(piece.first + i);
            load += piece.count;
          }
          EXPECT_GE(load, micro_batches / members);
          EXPECT_LE(load, (micro_batches + members - 1) / members);
          total[m] += load;
        }
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), micro_batches);
      }
      // Over as many steps as there are members, all carry the same load.
      for (const uint64_t carried : total) EXPECT_EQ(carried, micro_batches);
    }
  }
}

TEST(AssignSubtreesTest, BackupWorkersShareNothing) {
  EXPECT_EQ(SharingMembers(4, 0), 4u);
  EXPECT_EQ(SharingMembers(4, 1), 3u);
  EXPECT_EQ(SharingMembers(4, 3), 1u);
  EXPECT_EQ(SharingMembers(4, 4), 1u);
  EXPECT_EQ(SharingMembers(1, 1), 1u);
  EXPECT_EQ(SharingMembers(0, 1), 0u);
}

TEST(AssignSubtreesTest, OneMemberHasTheWholeTreeInOnePiece) {
  EXPECT_THAT(AssignSubtrees(5, 0, 1, 16), testing::ElementsAre(Subtree{0, 16}));
}

TEST(AssignSubtreesTest, TheFirstPartGoesToTheMemberOfTheStepsNumber) {
  EXPECT_THAT(AssignSubtrees(0, 0, 3, 4), testing::ElementsAre(Subtree{0, 1}));
  EXPECT_THAT(AssignSubtrees(4, 1, 3, 4), testing::ElementsAre(Subtree{0, 1}));
  EXPECT_THAT(AssignSubtrees(4, 0, 3, 4), testing::ElementsAre(Subtree{2, 2}));
}

}  // namespace
}  // namespace starling
