#include "server/shard/apply/testing/repeated_values.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/apply/verify.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr size_t kElements = 5;

UpdateRule Adam() {
  UpdateRule rule;
  rule.kind = UpdateRule::kAdam;
  rule.beta1 = 0.9;
  rule.beta2 = 0.999;
  rule.epsilon = 1e-8;
  rule.blocks = {kElements};
  return rule;
}

PayloadPiece BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
}

class RepeatedValuesTest : public ::testing::Test {
 protected:
  RepeatedValuesTest() { values_.AddSlice(SliceId(3), Adam(), first_); }

  Record Apply(const std::vector<float>& gradient, int64_t t) {
    Record record;
    record.slice = SliceId(3);
    record.elements = kElements;
    record.scalars = {0.1F, 1, 0, t, 0};
    const PayloadPiece piece = BytesOf(gradient);
    record.digest = VerifyPayload({&piece, 1}).digest;
    return record;
  }
  absl::Status Repeat(const Record& record, const std::vector<float>& gradient) {
    const PayloadPiece piece = BytesOf(gradient);
    return values_.Repeat(record, {&piece, 1});
  }

  const std::vector<float> first_ = {1, 2, 3, 4, 5};
  const std::vector<float> gradient_ = {0.5F, -1, 2, 0, 3};
  RepeatedValues values_;
};

// The primary of a BSP job updates from one version into another, a repeater in place.
TEST_F(RepeatedValuesTest, InPlaceAndOutOfPlaceAreOne) {
  std::vector<float> versions[2] = {first_, first_};
  std::vector<float> slots[2] = {std::vector<float>(kElements), std::vector<float>(kElements)};
  for (int64_t t = 1; t <= 3; ++t) {
    const Record record = Apply(gradient_, t);
    const PayloadPiece piece = BytesOf(gradient_);
    ApplyUpdate(Adam(), record.scalars, {&piece, 1},
                {versions[(t + 1) % 2].data(), versions[t % 2].data(), slots[0].data(),
                 slots[1].data(), kElements});
    ASSERT_TRUE(Repeat(record, gradient_).ok());
    ValuesDigest digest;
    digest.Add(versions[t % 2]);
    for (const std::vector<float>& slot : slots) digest.Add(slot);
    EXPECT_EQ(values_.Digest(), digest.digest());
  }
}

TEST_F(RepeatedValuesTest, SkippedWorkAndOtherKindsChangeNothing) {
  const uint64_t before = values_.Digest();
  Record skipped = Apply(gradient_, 1);
  skipped.skipped = true;
  EXPECT_TRUE(Repeat(skipped, gradient_).ok());
  Record cut;
  cut.kind = RecordKind::kCut;
  EXPECT_TRUE(values_.Repeat(cut, {}).ok());
  EXPECT_EQ(values_.Digest(), before);
}

TEST_F(RepeatedValuesTest, SlotsCountForTheDigest) {
  const uint64_t before = values_.Digest();
  Record still = Apply(gradient_, 1);
  still.scalars.rate = 0;  // the value stays, the moments do not
  ASSERT_TRUE(Repeat(still, gradient_).ok());
  EXPECT_NE(values_.Digest(), before);
}

TEST_F(RepeatedValuesTest, APayloadThatIsNotTheRecordsIsRefusedWithoutAChange) {
  const uint64_t before = values_.Digest();
  Record record = Apply(gradient_, 1);
  EXPECT_THAT(std::string(Repeat(record, {1, 2, 3, 4}).message()), HasSubstr("expected 20 bytes"));
  EXPECT_THAT(std::string(Repeat(record, first_).message()), HasSubstr("expected digest"));
  record.slice = SliceId(4);
  EXPECT_THAT(std::string(Repeat(record, gradient_).message()), HasSubstr("slice 4 is not here"));
  const std::vector<float> bad = {1, std::numeric_limits<float>::quiet_NaN(), 3, 4, 5};
  EXPECT_THAT(std::string(Repeat(Apply(bad, 1), bad).message()),
              HasSubstr("element 1 is not finite"));
  EXPECT_EQ(values_.Digest(), before);
}

}  // namespace
}  // namespace starling
