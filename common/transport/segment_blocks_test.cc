#include "common/transport/segment_blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

namespace starling {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};
constexpr size_t kBlock = limits::kSegmentBlockBytes;

uint64_t Taken(uint64_t free, size_t bytes) {
  FreeBlocks blocks;
  EXPECT_TRUE(blocks.Add(free));
  const uint64_t taken = blocks.Take(bytes);
  EXPECT_TRUE(blocks.Add(taken)) << "they are free still";
  return taken;
}

TEST(FreeBlocks, TakesTheLowestThatFit) {
  EXPECT_EQ(Taken(kAll, 1), 1u);
  EXPECT_EQ(Taken(kAll, kBlock), 1u);
  EXPECT_EQ(Taken(kAll, kBlock + 1), 3u);
  EXPECT_EQ(Taken(kAll, 8 * kBlock), 0xFFu);
  EXPECT_EQ(Taken(kAll, 64 * kBlock), kAll);
  EXPECT_EQ(Taken(0, 1), 0u);
  EXPECT_EQ(Taken(0b1011'0100, kBlock), 0b100u);
  EXPECT_EQ(Taken(0b1011'0100, 2 * kBlock), 0b11'0000u);
  EXPECT_EQ(Taken(0b1011'0100, 3 * kBlock), 0u);
  EXPECT_EQ(Taken(uint64_t{7} << 61, 3 * kBlock), uint64_t{7} << 61);
  EXPECT_EQ(Taken(uint64_t{7} << 61, 4 * kBlock), 0u);
  EXPECT_EQ(Taken(kAll >> 1, 64 * kBlock), 0u);
}

TEST(FreeBlocks, RefusesThoseThatAreFree) {
  FreeBlocks blocks;
  EXPECT_TRUE(blocks.Add(0b1100));
  EXPECT_FALSE(blocks.Add(0b0110));
  EXPECT_EQ(blocks.Take(3 * kBlock), 0u);  // nothing was added
  EXPECT_TRUE(blocks.Add(0b0010));
  EXPECT_EQ(blocks.Take(3 * kBlock), 0b1110u);
}

TEST(HeldBlocks, RefusesThoseThatThePeerDoesNotHave) {
  HeldBlocks blocks;
  EXPECT_FALSE(blocks.Use(1)) << "not given yet";
  EXPECT_EQ(blocks.Give(), kAll);
  EXPECT_TRUE(blocks.Use(0b11));
  EXPECT_FALSE(blocks.Use(0b110)) << "in use";
  EXPECT_TRUE(blocks.Use(0b100)) << "a refusal changes nothing";
  blocks.Release(0b11);
  EXPECT_FALSE(blocks.Use(0b01)) << "not given back yet";
  EXPECT_EQ(blocks.Give(), 0b11u);
  EXPECT_EQ(blocks.Give(), 0u);
  EXPECT_TRUE(blocks.Use(0b11));
}

// Two ends that keep the rules: no block is used twice at a time, and all come back.
TEST(SegmentBlocks, BothEndsAgree) {
  std::mt19937 random(5);
  FreeBlocks sender;
  HeldBlocks receiver;
  std::deque<uint64_t> there, back;
  std::vector<uint64_t> handling;
  uint64_t busy = 0;  // from Take to Release
  int full = 0;
  back.push_back(receiver.Give());
  for (int i = 0; i < 100'000; ++i) {
    const auto one = random() % 4;
    if (one == 0) {
      const uint64_t blocks = sender.Take(1 + random() % (9 * kBlock));
      full += blocks == 0 ? 1 : 0;
      if (blocks == 0) continue;
      ASSERT_EQ(busy & blocks, 0u);
      busy |= blocks;
      there.push_back(blocks);
    } else if (one == 1 && !there.empty()) {
      ASSERT_TRUE(receiver.Use(there.front()));
      handling.push_back(there.front());
      there.pop_front();
    } else if (one == 2 && !handling.empty()) {
      const size_t which = random() % handling.size();
      receiver.Release(handling[which]);
      busy &= ~handling[which];
      handling.erase(handling.begin() + static_cast<std::ptrdiff_t>(which));
      if (random() % 2 == 0) back.push_back(receiver.Give());
    } else if (one == 3 && !back.empty()) {
      ASSERT_TRUE(sender.Add(back.front()));
      back.pop_front();
    }
  }
  EXPECT_GT(full, 1000);
  for (const uint64_t blocks : there) ASSERT_TRUE(receiver.Use(blocks));
  for (const uint64_t blocks : there) receiver.Release(blocks);
  for (const uint64_t blocks : handling) receiver.Release(blocks);
  back.push_back(receiver.Give());
  for (const uint64_t blocks : back) ASSERT_TRUE(sender.Add(blocks));
  EXPECT_EQ(sender.Take(limits::kSegmentBytes), kAll);
}

}  // namespace
}  // namespace starling
