#include "common/data_plan/coverage.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace starling {
namespace {

void ExpectEqual(const Coverage& coverage, const std::set<uint64_t>& covered) {
  uint64_t floor = 0;
  while (covered.count(floor) != 0) ++floor;
  ASSERT_EQ(coverage.floor(), floor);
  ASSERT_EQ(coverage.count(), covered.size());
  ASSERT_EQ(coverage.End(), covered.empty() ? 0 : *covered.rbegin() + 1);
  uint64_t next_covered = coverage.items();
  uint64_t next_uncovered = coverage.items();
  for (uint64_t i = coverage.items(); i-- > 0;) {
    const bool has = covered.count(i) != 0;
    (has ? next_covered : next_uncovered) = i;
    ASSERT_EQ(coverage.Has(i), has);
    ASSERT_EQ(coverage.NextCovered(i), next_covered);
    ASSERT_EQ(coverage.NextUncovered(i), next_uncovered);
  }
  uint64_t end = floor;
  for (const auto& [begin, range_end] : coverage.ranges()) {
    ASSERT_GT(begin, end) << "ranges touch";
    ASSERT_LT(begin, range_end);
    end = range_end;
  }
}

TEST(CoverageTest, AgreesWithASetInAnyOrder) {
  std::mt19937 random(5);
  for (const uint64_t items : {1, 2, 63, 64, 65, 200}) {
    Coverage coverage(items);
    std::set<uint64_t> covered;
    EXPECT_FALSE(coverage.complete());
    while (covered.size() < items) {
      if (random() % 4 == 0) {
        const uint64_t begin = random() % items;
        const uint64_t end = begin + random() % 5;
        coverage.MarkRange(begin, end);
        for (uint64_t i = begin; i < std::min(end, items); ++i) covered.insert(i);
      } else {
        const uint64_t item = random() % items;
        EXPECT_EQ(coverage.Mark(item), covered.insert(item).second);
      }
      ExpectEqual(coverage, covered);
    }
    EXPECT_TRUE(coverage.complete());
    EXPECT_TRUE(coverage.ranges().empty());
    EXPECT_FALSE(coverage.Has(items));
  }
}

TEST(CoverageTest, NoItemsAreComplete) { EXPECT_TRUE(Coverage(0).complete()); }

// An epoch of four billion items with one hole.
TEST(CoverageTest, CostsWhatIsOpenNotWhatIsThere) {
  constexpr uint64_t kItems = uint64_t{1} << 32;
  Coverage coverage(kItems);
  coverage.MarkRange(0, kItems / 2);
  coverage.MarkRange(kItems / 2 + 1, kItems);
  EXPECT_EQ(coverage.ranges().size(), 1u);
  EXPECT_EQ(coverage.count(), kItems - 1);
  EXPECT_EQ(coverage.NextUncovered(5), kItems / 2);
  EXPECT_TRUE(coverage.Mark(kItems / 2));
  EXPECT_TRUE(coverage.complete());
}

}  // namespace
}  // namespace starling
