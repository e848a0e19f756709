#include "kernels/cuda/attention_plan.h"

#include <set>

#include "gtest/gtest.h"

namespace starling::cuda {
namespace {

using Four = std::array<int64_t, 4>;

OperatorGeometry Some() {
  OperatorGeometry g;
  g.batch = 12;
  g.rows = 130;
  g.inputs = 48;
  g.heads = 3;
  return g;
}

AttentionKey KeyOfSome(bool packed) {
  OperatorGeometry g = Some();
  g.packed = packed;
  return KeyOf(g, 4, Element::kHalf, /*training=*/true, /*backward=*/false);
}

TEST(AttentionKeyTest, ShapesComeFromTheGeometry) {
  EXPECT_EQ(ValueSize(KeyOfSome(false)), (Four{4, 3, 130, 16}));
  EXPECT_EQ(StatisticsSize(KeyOfSome(false)), (Four{4, 3, 130, 1}));
  EXPECT_EQ(StatisticsStrides(KeyOfSome(false)), (Four{390, 130, 1, 1}));
}

// Element [n, h, t, i] of [N, T, heads, width], or of a third of [N, T, 3 * heads * width].
TEST(AttentionKeyTest, StridesSayTheLayout) {
  EXPECT_EQ(InputStrides(KeyOfSome(false)), (Four{130 * 48, 16, 48, 1}));
  EXPECT_EQ(InputStrides(KeyOfSome(true)), (Four{130 * 144, 16, 144, 1}));
  EXPECT_EQ(OutputStrides(KeyOfSome(true)), (Four{130 * 48, 16, 48, 1}));
}

TEST(AttentionKeyTest, WholeTilesOfPositionsDoWithAnOlderCudnn) {
  AttentionKey key = KeyOfSome(false);
  EXPECT_EQ(OldestCudnn(key), 91600u);
  key.positions = 1024;
  EXPECT_EQ(OldestCudnn(key), 90600u);
}

TEST(AttentionKeyTest, WhatChangesThePlanChangesTheKey) {
  std::set<AttentionKey> keys;
  for (bool training : {false, true}) {
    keys.insert(KeyOf(Some(), 4, Element::kHalf, training, false));
  }
  keys.insert(KeyOf(Some(), 4, Element::kHalf, true, true));
  keys.insert(KeyOf(Some(), 4, Element::kBfloat16, true, false));
  keys.insert(KeyOf(Some(), 6, Element::kHalf, true, false));
  keys.insert(KeyOfSome(true));
  OperatorGeometry other = Some();
  other.causal = true;
  keys.insert(KeyOf(other, 4, Element::kHalf, true, false));
  for (int64_t OperatorGeometry::*field :
       {&OperatorGeometry::rows, &OperatorGeometry::inputs, &OperatorGeometry::heads}) {
    other = Some();
    other.*field *= 2;
    keys.insert(KeyOf(other, 4, Element::kHalf, true, false));
  }
  EXPECT_EQ(keys.size(), 10u);
  EXPECT_TRUE(keys.contains(KeyOf(Some(), 4, Element::kHalf, true, false)));
}

TEST(SamplesAtOnceTest, AreTheLargestDivisorWithinTheLimit) {
  const int64_t sample = 3 * 192 * 256 * 2;  // 130 positions in tiles of 64 x 128
  ASSERT_EQ(ScoreBytes(Some()), sample);
  EXPECT_EQ(SamplesAtOnce(Some(), 12 * sample), 12);
  EXPECT_EQ(SamplesAtOnce(Some(), 12 * sample - 1), 6);
  EXPECT_EQ(SamplesAtOnce(Some(), 5 * sample), 4);
  EXPECT_EQ(SamplesAtOnce(Some(), sample), 1);
  EXPECT_EQ(SamplesAtOnce(Some(), 0), 1);
  OperatorGeometry prime = Some();
  prime.batch = 7;
  EXPECT_EQ(SamplesAtOnce(prime, 6 * sample), 1);
}

TEST(ScratchTest, RowsMayLeaveScratchUnaligned) {
  AttentionKey key = {.samples = 1, .heads = 3, .positions = 67};
  EXPECT_FALSE(ScratchIsAligned(key));
  key.samples = 4;
  EXPECT_TRUE(ScratchIsAligned(key));
  EXPECT_TRUE(ScratchIsAligned({.samples = 1, .heads = 1, .positions = 64}));
}

}  // namespace
}  // namespace starling::cuda
