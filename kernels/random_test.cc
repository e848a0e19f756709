#include "kernels/random.h"

#include <Random123/philox.h>

#include <vector>

#include "gtest/gtest.h"

namespace starling {
namespace {

TEST(DropoutMaskTest, IsRandom123sPhilox) {
  const RandomKey key = {.seed = 0x1234567890abcdef, .step = 77, .micro_batch = 3, .node = 9};
  for (double rate : {0.0, 0.1, 0.5, 0.97}) {
    for (int64_t count : {1, 31, 32, 70, 4097}) {
      std::vector<uint8_t> mask(count + 1, 7), portable(count + 1, 7);
      DropoutMask(key, rate, count, mask.data());
      PortableDropoutMask(key, DropThreshold(rate), 0, count, portable.data());
      EXPECT_EQ(mask[count], 7) << "wrote past the end";
      EXPECT_EQ(portable, mask);
      for (int64_t i = 0; i < count; ++i) {
        r123::Philox4x32 philox;
        const r123::Philox4x32::ctr_type counter = {
            {static_cast<uint32_t>(i / 4), key.node, key.micro_batch, key.step}};
        const r123::Philox4x32::key_type words = {{0x90abcdef, 0x12345678}};
        const bool kept = philox(counter, words)[i % 4] >= DropThreshold(rate);
        ASSERT_EQ(mask[i], kept ? 1 : 0) << "element " << i << ", rate " << rate;
      }
    }
  }
}

TEST(DropoutMaskTest, EachPartOfTheKeyMatters) {
  const RandomKey base = {.seed = 1, .step = 2, .micro_batch = 3, .node = 4};
  std::vector<uint8_t> expected(256);
  DropoutMask(base, 0.5, 256, expected.data());
  std::vector<RandomKey> others(5, base);
  others[0].seed ^= 1;
  others[1].seed ^= uint64_t{1} << 40;
  others[2].step ^= 1;
  others[3].micro_batch ^= 1;
  others[4].node ^= 1;
  for (const RandomKey& key : others) {
    std::vector<uint8_t> mask(256);
    DropoutMask(key, 0.5, 256, mask.data());
    EXPECT_NE(mask, expected);
  }
}

TEST(DropoutMaskTest, DropsTheRate) {
  const int64_t count = 1 << 18;
  std::vector<uint8_t> mask(count);
  DropoutMask({.seed = 5}, 0.25, count, mask.data());
  int64_t kept = 0;
  for (uint8_t keep : mask) kept += keep;
  EXPECT_NEAR(static_cast<double>(kept) / count, 0.75, 0.005);  // 6 standard deviations
}

}  // namespace
}  // namespace starling
