#include "common/reduce/subtree_sum.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using ::testing::ElementsAre;

// Sums along the tree, naively.
float TreeSum(const std::vector<float>& leaves, uint32_t first, uint32_t count) {
  if (count == 1) return leaves[first];
  return TreeSum(leaves, first, count / 2) + TreeSum(leaves, first + count / 2, count / 2);
}

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Carries out merges on one float per buffer, and tracks which buffers are free.
class Owner {
 public:
  explicit Owner(uint32_t leaves) : sum_(leaves) {}

  SubtreeSum::Outcome Insert(uint32_t first, uint32_t count, float value) {
    const BufferId id(++last_);
    buffers_[id] = value;
    const SubtreeSum::Outcome outcome = sum_.Insert(first, count, id);
    if (outcome.duplicate) buffers_.erase(id);
    for (const BufferId replaced : outcome.replaced) EXPECT_EQ(buffers_.erase(replaced), 1u);
    for (const SubtreeSum::Merge& merge : outcome.merges) {
      buffers_.at(merge.into) += buffers_.at(merge.from);
      EXPECT_EQ(buffers_.erase(merge.from), 1u);
    }
    return outcome;
  }

  float at(BufferId id) const { return buffers_.at(id); }
  size_t live() const { return buffers_.size(); }
  bool empty() const { return sum_.empty(); }

 private:
  SubtreeSum sum_;
  std::map<BufferId, float> buffers_;
  uint64_t last_ = 0;
};

struct Range {
  uint32_t first;
  uint32_t count;
};

// Covers [first, first + count) by random aligned ranges, some of them more than once.
void AddRandomRanges(uint32_t first, uint32_t count, std::mt19937* random,
                     std::vector<Range>* ranges) {
  const bool whole = count == 1 || (*random)() % 3 == 0;
  if (whole) ranges->push_back({first, count});
  if (count > 1 && (!whole || (*random)() % 4 == 0)) {
    AddRandomRanges(first, count / 2, random, ranges);
    AddRandomRanges(first + count / 2, count / 2, random, ranges);
  }
}

TEST(SubtreeSumTest, AnyOrderOfAnyRangesGivesTheBitsOfTheTree) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponent(-12, 12);
  int orders_that_matter = 0;
  for (int round = 0; round < 400; ++round) {
    const uint32_t leaves = 1u << (random() % 7);
    std::vector<float> values;
    for (uint32_t i = 0; i < leaves; ++i)
      values.push_back((random() % 2 ? 1 : -1) * std::exp2(exponent(random)));
    float in_line = 0;
    for (const float value : values) in_line += value;
    const float expected = TreeSum(values, 0, leaves);
    orders_that_matter += Bits(in_line) != Bits(expected);

    std::vector<Range> ranges;
    AddRandomRanges(0, leaves, &random, &ranges);
    std::shuffle(ranges.begin(), ranges.end(), random);
    Owner owner(leaves);
    bool complete = false;
    for (const Range& range : ranges) {
      const auto outcome =
          owner.Insert(range.first, range.count, TreeSum(values, range.first, range.count));
      if (!outcome.complete) continue;
      EXPECT_EQ(Bits(owner.at(outcome.root)), Bits(expected));
      EXPECT_EQ(owner.live(), 1u);
      EXPECT_TRUE(owner.empty());
      complete = true;
      break;
    }
    EXPECT_TRUE(complete);
  }
  EXPECT_GT(orders_that_matter, 100);  // the property is not trivial
}

TEST(SubtreeSumTest, ContainedIsADuplicateAndContainingReplaces) {
  SubtreeSum sum(8);
  EXPECT_FALSE(sum.Insert(2, 1, BufferId(1)).duplicate);
  EXPECT_TRUE(sum.Insert(2, 1, BufferId(2)).duplicate);
  EXPECT_TRUE(sum.Holds(2, 1));
  EXPECT_FALSE(sum.Holds(2, 2));
  const auto outcome = sum.Insert(0, 4, BufferId(3));
  EXPECT_THAT(outcome.replaced, ElementsAre(BufferId(1)));
  EXPECT_TRUE(outcome.merges.empty());
  EXPECT_TRUE(sum.Insert(3, 1, BufferId(4)).duplicate);
  EXPECT_FALSE(sum.Holds(4, 1));
}

TEST(SubtreeSumTest, MergesGoIntoTheOlderBufferUpToTheRoot) {
  SubtreeSum sum(4);
  EXPECT_TRUE(sum.Insert(2, 1, BufferId(1)).merges.empty());
  EXPECT_TRUE(sum.Insert(0, 2, BufferId(2)).merges.empty());
  const auto outcome = sum.Insert(3, 1, BufferId(3));
  EXPECT_THAT(outcome.merges, ElementsAre(SubtreeSum::Merge{BufferId(1), BufferId(3)},
                                          SubtreeSum::Merge{BufferId(2), BufferId(1)}));
  EXPECT_TRUE(outcome.complete);
  EXPECT_EQ(outcome.root, BufferId(2));
  EXPECT_TRUE(sum.empty());
}

TEST(SubtreeSumTest, ClearGivesBackWhatIsHeld) {
  SubtreeSum sum(4);
  sum.Insert(3, 1, BufferId(1));
  sum.Insert(0, 1, BufferId(2));
  EXPECT_THAT(sum.Clear(), ElementsAre(BufferId(2), BufferId(1)));
  EXPECT_TRUE(sum.empty());
}

}  // namespace
}  // namespace starling
