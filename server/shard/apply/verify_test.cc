#include "server/shard/apply/verify.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "server/shard/apply/testing/cut_payload.h"
#include "xxhash.h"

namespace starling {
namespace {

std::vector<float> RandomValues(size_t count, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(*random);
  return values;
}

TEST(VerifyTest, DigestIsThatOfTheWholeWhateverThePieces) {
  std::mt19937 random(1);
  for (const size_t count : {0, 1, 3, 64, 257, 20'000, 100'003}) {
    const std::vector<float> values = RandomValues(count, &random);
    const uint64_t expected = XXH3_64bits(values.data(), count * sizeof(float));
    for (const InstructionSet set : UsableInstructionSets()) {
      for (const size_t pieces : {1, 2, 5, 17}) {
        const CutPayload cut(values, pieces, &random);
        const PayloadVerdict verdict = VerifyPayload(cut.payload(), set);
        EXPECT_EQ(verdict.digest, expected) << count << " elements, " << InstructionSetName(set);
        EXPECT_EQ(verdict.first_non_finite, -1);
      }
    }
  }
}

TEST(VerifyTest, FindsTheFirstBadElementAtEveryPosition) {
  std::mt19937 random(2);
  const std::vector<float> clean = RandomValues(515, &random);
  const float bad[] = {
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::signaling_NaN()};
  for (const InstructionSet set : UsableInstructionSets()) {
    for (size_t i = 0; i < clean.size(); ++i) {
      std::vector<float> values = clean;
      values[i] = bad[i % 4];
      if (i % 3 == 0) values.back() = bad[0];  // a later one does not matter
      const CutPayload cut(values, 1 + i % 6, &random);
      EXPECT_EQ(VerifyPayload(cut.payload(), set).first_non_finite, static_cast<int64_t>(i));
    }
  }
}

TEST(VerifyTest, TheGreatestAndTheSmallestNumbersAreFinite) {
  using Limits = std::numeric_limits<float>;
  std::mt19937 random(3);
  const CutPayload cut(
      {Limits::max(), Limits::lowest(), Limits::denorm_min(), -0.0f, Limits::min()}, 1, &random);
  EXPECT_EQ(VerifyPayload(cut.payload()).first_non_finite, -1);
}

TEST(VerifyTest, OneFlippedBitIsAnotherDigest) {
  std::mt19937 random(4);
  std::vector<float> values = RandomValues(1000, &random);
  const uint64_t digest = VerifyPayload(CutPayload(values, 3, &random).payload()).digest;
  values[777] = std::nextafter(values[777], 9.0f);
  EXPECT_NE(VerifyPayload(CutPayload(values, 3, &random).payload()).digest, digest);
}

}  // namespace
}  // namespace starling
