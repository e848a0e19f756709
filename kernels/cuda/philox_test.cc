#include "kernels/cuda/philox.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/random.h"

namespace starling::cuda {
namespace {

// The GPU's mask equals the CPU's, bit for bit.
TEST(PhiloxTest, DropsWhatTheCpuDrops) {
  constexpr int64_t kCount = 1003;
  constexpr double kRate = 0.3;
  for (const RandomKey& key : {RandomKey{.seed = 1, .step = 2, .micro_batch = 3, .node = 4},
                               RandomKey{.seed = 0x123456789abcdef0,
                               .step = 0xffffffff,
                               .micro_batch = 0x80000000,
                               .node = 17}}) {
    std::vector<uint8_t> expected(kCount), got(kCount);
    DropoutMask(key, kRate, kCount, expected.data());
    const PhiloxKey same = {key.seed, key.step, key.micro_batch, key.node};
    for (int64_t i = 0; i < kCount; ++i) {
      uint32_t words[4];
      PhiloxWords(same, static_cast<uint32_t>(i / 4), words);
      got[i] = words[i % 4] >= DropThreshold(kRate) ? 1 : 0;
    }
    EXPECT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace starling::cuda
