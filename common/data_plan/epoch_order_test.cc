#include "common/data_plan/epoch_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace starling {
namespace {

std::vector<int64_t> All(uint64_t seed, uint32_t epoch, int64_t samples) {
  const EpochOrder order(seed, epoch, samples);
  std::vector<int64_t> out;
  for (int64_t p = 0; p < samples; ++p) out.push_back(order.SampleAt(p));
  return out;
}

TEST(EpochOrder, IsABijection) {
  std::vector<int64_t> sizes = {1'000, 1'023, 1'024, 1'025, 1'437, 60'000, 65'537};
  for (int64_t n = 1; n <= 70; ++n) sizes.push_back(n);
  for (int64_t n : sizes) {
    std::vector<int> seen(n, 0);
    for (int64_t sample : All(/*seed=*/7, /*epoch=*/3, n)) {
      ASSERT_GE(sample, 0);
      ASSERT_LT(sample, n);
      ++seen[sample];
    }
    for (int count : seen) ASSERT_EQ(count, 1) << "of " << n;
  }
}

TEST(EpochOrder, DependsOnSeedAndEpochAlone) {
  const std::vector<int64_t> base = All(7, 0, 1000);
  EXPECT_EQ(base, All(7, 0, 1000));
  EXPECT_NE(base, All(7, 1, 1000));
  EXPECT_NE(base, All(8, 0, 1000));
  EXPECT_NE(base, All(7 | uint64_t{1} << 32, 0, 1000));
  for (int64_t p : {0, 1, 500, 999}) EXPECT_EQ(SampleAt(7, 0, p, 1000), base[p]);
}

TEST(EpochOrder, DoesNotChangeBetweenReleases) {  // a change would break resuming a job
  const std::vector<int64_t> expected = {1, 5, 6, 0, 8, 4, 3, 7, 9, 2};
  EXPECT_EQ(All(7, 0, 10), expected);
}

TEST(EpochOrder, ShufflesWell) {
  // Sample and position are independent: chi-square over 10x10 cells of 20,000 epochs; 81 degrees
  // of freedom, so 136 is exceeded once in 10,000.
  constexpr int kEpochs = 20'000;
  int cells[10][10] = {};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const EpochOrder order(1, epoch, 10);
    for (int p = 0; p < 10; ++p) ++cells[p][order.SampleAt(p)];
  }
  double chi_square = 0;
  for (auto& row : cells) {
    for (int count : row) chi_square += std::pow(count - kEpochs / 10.0, 2) / (kEpochs / 10.0);
  }
  EXPECT_LT(chi_square, 136);
  // Neighbours do not stay neighbours: about 2 of 60,000 adjacent pairs do.
  int adjacent = 0;
  const std::vector<int64_t> all = All(1, 0, 60'000);
  for (size_t i = 1; i < all.size(); ++i) adjacent += std::abs(all[i] - all[i - 1]) == 1;
  EXPECT_LT(adjacent, 15);
}

}  // namespace
}  // namespace starling
