#include "server/shard/apply/measure.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace starling {
namespace {

std::vector<InstructionSet> Usable() {
  std::vector<InstructionSet> sets = {InstructionSet::kPortable};
  if (BestInstructionSet() >= InstructionSet::kAvx2) sets.push_back(InstructionSet::kAvx2);
  if (BestInstructionSet() >= InstructionSet::kAvx512) sets.push_back(InstructionSet::kAvx512);
  return sets;
}

PayloadPiece Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
}

TEST(MeasureTest, ThreeFourFive) {
  const std::vector<float> values = {3, 0, -4};
  const PayloadPiece piece = Bytes(values);
  for (const InstructionSet set : Usable()) {
    EXPECT_EQ(MeasurePayload(Payload(&piece, 1), set).norm2, 25);
    EXPECT_EQ(MeasurePayload(Payload(), set).norm2, 0);
  }
}

// The largest finite floats do not overflow, and neither instruction set nor cut changes a bit.
TEST(MeasureTest, TheBitsDoNotDependOnTheWay) {
  std::vector<float> values(70'001);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] =
        std::ldexp(static_cast<float>(i * 2654435761u % 1000) - 500, static_cast<int>(i % 40) - 20);
  values[77] = std::numeric_limits<float>::max();
  const PayloadPiece whole = Bytes(values);
  const double expected = MeasurePayload(Payload(&whole, 1), InstructionSet::kPortable).norm2;
  EXPECT_TRUE(std::isfinite(expected));
  for (const size_t cut : {1, 3, 4, 60, 4097, 100'001}) {
    const PayloadPiece pieces[] = {whole.subspan(0, cut), whole.subspan(cut)};
    for (const InstructionSet set : Usable()) {
      const PayloadMeasure measure = MeasurePayload(Payload(pieces, 2), set);
      EXPECT_EQ(measure.norm2, expected) << cut;
      EXPECT_EQ(measure.first_non_finite, -1);
    }
  }
}

TEST(MeasureTest, NamesTheFirstElementThatIsNotFinite) {
  std::vector<float> values(100, 1);
  values[40] = std::numeric_limits<float>::infinity();
  values[60] = std::nanf("");
  const PayloadPiece piece = Bytes(values);
  for (const InstructionSet set : Usable())
    EXPECT_EQ(MeasurePayload(Payload(&piece, 1), set).first_non_finite, 40);
}

}  // namespace
}  // namespace starling
