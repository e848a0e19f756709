#include "tools/bench/compute_nets.h"

#include <map>

#include "gtest/gtest.h"

namespace starling {
namespace {

double FlopsOf(const char* name) {
  return StepFlops(Validate(MakeComputeNet(name).value().spec.model()).value());
}

TEST(ComputeNetsTest, CountsEveryProductOnceForEachPass) {
  // conv1 reads the images, which need no gradient: two passes. Everything else: three.
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

// torch_peer.py's nets must match.
TEST(ComputeNetsTest, AreTheNetsThatOthersMean) {
  const std::map<std::string, int64_t> expected = {{"lenet", 1'199'882},
                                                   {"resnet18", 11'173'962},
                                                   {"gpt", 10'844'160},
                                                   {"resnet50", 25'557'032},
                                                   {"gpt2", 124'439'808}};
  for (const auto& [name, parameters] : expected) {
    const ResolvedGraph graph = Validate(MakeComputeNet(name).value().spec.model()).value();
    int64_t trainable = 0;
    for (const ResolvedParameter& parameter : graph.parameters) {
      if (parameter.kind == TRAINABLE) trainable += parameter.elements;
    }
    EXPECT_EQ(trainable, parameters) << name;
  }
}

TEST(ComputeNetsTest, EveryNameIsANet) {
  EXPECT_EQ(ComputeNetNames().size(), 3u);
  EXPECT_EQ(AllComputeNetNames().size(), 5u);
  for (const std::string& name : AllComputeNetNames()) {
    EXPECT_GT(FlopsOf(name.c_str()), 1e6) << name;
    EXPECT_GT(MakeComputeNet(name)->spec.batch().global(), 0u) << name;
  }
  EXPECT_EQ(MakeComputeNet("vgg").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace starling
