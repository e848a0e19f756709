#include "tools/bench/compute_nets.h"

#include "gtest/gtest.h"

namespace starling {
namespace {

double FlopsOf(const char* name) {
  return StepFlops(Validate(MakeComputeNet(name).value().spec.model()).value());
}

TEST(ComputeNetsTest, CountsEveryProductOnceForEachPass) {
  // conv1 reads the images, which want no gradient: two passes. All else: three.
  const double conv1 = 2.0 * 26 * 26 * 32 * 9;
  const double conv2 = 2.0 * 24 * 24 * 64 * 32 * 9;
  const double linear = 2.0 * (9216 * 128 + 128 * 10);
  EXPECT_EQ(FlopsOf("lenet"), 2 * conv1 + 3 * (conv2 + linear));
}

TEST(ComputeNetsTest, CausalAttentionCountsWhatIsSeen) {
  const double weights = 6 * 12.0 * 384 * 384 + 256 * 384;  // the blocks' and the head's
  const double linear = 2.0 * 256 * weights;
  const double attention = 6 * 2 * 2.0 * 384 * (256 * 257 / 2.0);
  EXPECT_EQ(FlopsOf("gpt"), 3 * (linear + attention));
}

TEST(ComputeNetsTest, EveryNameIsANet) {
  for (const std::string& name : ComputeNetNames()) {
    EXPECT_GT(FlopsOf(name.c_str()), 1e6) << name;
    EXPECT_GT(MakeComputeNet(name)->spec.batch().global(), 0u) << name;
  }
  EXPECT_EQ(MakeComputeNet("vgg").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace starling
