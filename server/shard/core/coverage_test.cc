#include "server/shard/core/coverage.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace starling {
namespace {

TEST(CoverageTest, AgreesWithASetInAnyOrder) {
  std::mt19937 random(5);
  for (const uint64_t items : {1, 2, 63, 64, 65, 200}) {
    Coverage coverage(items);
    std::set<uint64_t> covered;
    EXPECT_FALSE(coverage.complete());
    while (covered.size() < items) {
      const uint64_t item = random() % items;
      EXPECT_EQ(coverage.Mark(item), covered.insert(item).second);
      uint64_t floor = 0;
      while (covered.count(floor) != 0) ++floor;
      ASSERT_EQ(coverage.floor(), floor);
      for (uint64_t i = 0; i < items; ++i) ASSERT_EQ(coverage.Has(i), covered.count(i) != 0);
      const std::string bits = coverage.BitsAboveFloor();
      uint64_t set_bits = 0;
      for (uint64_t i = 0; i < bits.size() * 8; ++i) {
        const bool bit = (static_cast<uint8_t>(bits[i / 8]) >> (i % 8) & 1) != 0;
        ASSERT_EQ(bit, covered.count(floor + i) != 0);
        set_bits += bit ? 1 : 0;
      }
      EXPECT_EQ(floor + set_bits, covered.size());
    }
    EXPECT_TRUE(coverage.complete());
    EXPECT_FALSE(coverage.Has(items));
  }
}

TEST(CoverageTest, NoItemsAreComplete) { EXPECT_TRUE(Coverage(0).complete()); }

}  // namespace
}  // namespace starling
