#include "worker/inference/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace starling {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Probabilities 1/2, 1/4, 1/8, 1/8.
const std::vector<float> kLogits = {std::log(4.0f), std::log(2.0f), 0.0f, 0.0f};

TEST(Sampler, SharesTheUnitIntervalByProbability) {
  EXPECT_EQ(SampleToken(kLogits, {}, 0.0), 0);
  EXPECT_EQ(SampleToken(kLogits, {}, 0.499), 0);
  EXPECT_EQ(SampleToken(kLogits, {}, 0.501), 1);
  EXPECT_EQ(SampleToken(kLogits, {}, 0.749), 1);
  EXPECT_EQ(SampleToken(kLogits, {}, 0.751), 2);
  EXPECT_EQ(SampleToken(kLogits, {}, 0.874), 2);
  EXPECT_EQ(SampleToken(kLogits, {}, 0.876), 3);
  EXPECT_EQ(SampleToken(kLogits, {}, 0.9999999), 3);
}

// At 1/2 the odds are squared: 16, 4, 1, 1.
TEST(Sampler, TemperatureSharpens) {
  const SamplerOptions options{.temperature = 0.5};
  EXPECT_EQ(SampleToken(kLogits, options, 15.9 / 22), 0);
  EXPECT_EQ(SampleToken(kLogits, options, 16.1 / 22), 1);
  EXPECT_EQ(SampleToken(kLogits, options, 20.1 / 22), 2);
}

TEST(Sampler, TemperatureZeroTakesTheGreatestAndOfEqualsTheFirst) {
  const std::vector<float> logits = {1, 3, 3, 2};
  for (double uniform : {0.0, 0.5, 0.99}) {
    EXPECT_EQ(SampleToken(logits, {.temperature = 0}, uniform), 1);
  }
}

TEST(Sampler, TopKDrawsFromTheGreatestOnly) {
  const std::vector<float> logits = {0, std::log(3.0f), 0, std::log(5.0f), 0};
  EXPECT_EQ(SampleToken(logits, {.top_k = 2}, 0.374), 1);
  EXPECT_EQ(SampleToken(logits, {.top_k = 2}, 0.376), 3);
  EXPECT_EQ(SampleToken(logits, {.top_k = 1}, 0.0), 3);
  // Of the three equal logits, the lowest token is the third.
  EXPECT_EQ(SampleToken(logits, {.top_k = 3}, 0.1), 0);
  EXPECT_EQ(SampleToken(logits, {.top_k = 5}, 0.9999999), 4);
}

TEST(Sampler, NanIsNeverDrawn) {
  EXPECT_EQ(SampleToken({kNan, 0.0f, kNan}, {}, 0.99), 1);
  EXPECT_EQ(SampleToken({kNan, kNan}, {}, 0.5), -1);
  EXPECT_EQ(SampleToken({0.0f, -kInf, kInf}, {}, 0.1), 2);
  EXPECT_EQ(SampleToken({-kInf, 0.0f}, {}, 0.0), 1);
}

TEST(Sampler, LargeLogitsDoNotOverflow) {
  EXPECT_EQ(SampleToken({1000.0f, 1000.0f}, {}, 0.49), 0);
  EXPECT_EQ(SampleToken({1000.0f, 1000.0f}, {}, 0.51), 1);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  std::map<int64_t, int> counts;
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[SampleToken(kLogits, {}, SamplerUniform(7, static_cast<uint64_t>(i)))];
  }
  const double expected[] = {0.5, 0.25, 0.125, 0.125};
  double chi_squared = 0;
  for (int k = 0; k < 4; ++k) {
    const double wanted = kDraws * expected[k];
    chi_squared += (counts[k] - wanted) * (counts[k] - wanted) / wanted;
  }
  EXPECT_LT(chi_squared, 16.3);  // 3 degrees of freedom, p = 0.001; the seed is fixed
}

TEST(Sampler, UniformsAreASequencePerSeed) {
  EXPECT_EQ(SamplerUniform(1, 0), SamplerUniform(1, 0));
  EXPECT_NE(SamplerUniform(1, 0), SamplerUniform(1, 1));
  EXPECT_NE(SamplerUniform(1, 0), SamplerUniform(2, 0));
  EXPECT_NE(SamplerUniform(1, 0), SamplerUniform(uint64_t{1} << 32, 0));
  for (uint64_t i = 0; i < 1000; ++i) {
    const double u = SamplerUniform(3, i);
    EXPECT_GE(u, 0);
    EXPECT_LT(u, 1);
  }
}

}  // namespace
}  // namespace starling
