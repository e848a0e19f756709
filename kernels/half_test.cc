#include "kernels/half.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace starling {
namespace {

// The number's value by the format's definition: `mantissa` bits after the hidden one.
double Meaning(uint16_t bits, int mantissa) {
  const int exponent_bits = 15 - mantissa, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << mantissa) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * INFINITY;
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp((1 << mantissa) + fraction, exponent - bias - mantissa);
}

int Mantissa(DataType type) { return type == DataType::kBf16 ? 7 : 10; }

// Nearest, ties to even, by comparing the two neighbours of x >= 0.
uint16_t NearestTo(double x, DataType type) {
  const int mantissa = Mantissa(type);
  const auto infinity = static_cast<uint16_t>(((1 << (15 - mantissa)) - 1) << mantissa);
  // Meaning(low) <= x, and x < Meaning(high) or high is infinity.
  uint16_t low = 0, high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (Meaning(middle, mantissa) <= x ? low : high) = middle;
  }
  // Rounding treats the range as unbounded: the next number would be in infinity's place.
  const double above = high == infinity ? 2 * Meaning(low, mantissa) - Meaning(low - 1, mantissa)
                                        : Meaning(high, mantissa);
  const double down = x - Meaning(low, mantissa), up = above - x;
  if (down == up) return (low & 1) == 0 ? low : high;
  return down < up ? low : high;
}

void Convert(const HalfVersion& version, DataType type, const std::vector<float>& from,
             std::vector<uint16_t>* to) {
  to->assign(from.size(), 0xdead);
  (type == DataType::kBf16 ? version.narrow_bf16 : version.narrow_fp16)(
      from.data(), to->data(), static_cast<int64_t>(from.size()));
}

void Convert(const HalfVersion& version, DataType type, const std::vector<uint16_t>& from,
             std::vector<float>* to) {
  to->assign(from.size(), -77.0f);
  (type == DataType::kBf16 ? version.widen_bf16 : version.widen_fp16)(
      from.data(), to->data(), static_cast<int64_t>(from.size()));
}

class HalfTest : public ::testing::TestWithParam<DataType> {};

TEST_P(HalfTest, EveryNumberIsWidenedExactlyAndComesBack) {
  const DataType type = GetParam();
  std::vector<uint16_t> all(1 << 16), back;
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide;
  for (const HalfVersion& version : HalfVersions()) {
    SCOPED_TRACE(version.name);
    Convert(version, type, all, &wide);
    Convert(version, type, wide, &back);
    for (size_t i = 0; i < all.size(); ++i) {
      const double meaning = Meaning(all[i], Mantissa(type));
      if (std::isnan(meaning)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
        ASSERT_TRUE(std::isnan(Meaning(back[i], Mantissa(type)))) << i;
        ASSERT_EQ(back[i] & 0x8000, all[i] & 0x8000) << i;
      } else {
        ASSERT_EQ(wide[i], meaning) << i;
        ASSERT_EQ(std::signbit(wide[i]), std::signbit(meaning)) << i;
        ASSERT_EQ(back[i], all[i]);
      }
    }
  }
}

// Numbers around every rounding boundary, of either sign, and arbitrary bits.
std::vector<float> Samples(DataType type) {
  std::vector<float> samples;
  const int mantissa = Mantissa(type);
  for (uint32_t bits = 0; bits < 0x8000; bits += 3) {
    const double low = Meaning(static_cast<uint16_t>(bits), mantissa);
    const double high = Meaning(static_cast<uint16_t>(bits + 1), mantissa);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const auto tie = static_cast<float>((low + high) / 2);
    for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, INFINITY)}) {
      samples.push_back(x);
      samples.push_back(-x);
    }
  }
  for (const float x : {65504.0f, 65519.9961f, 65520.0f, 65536.0f, 3.3895314e38f, 3.3961775e38f,
                        std::numeric_limits<float>::max(), 1e-45f, 1e-40f, 0x1p-25f, 0x1.2p-25f}) {
    samples.push_back(x);
    samples.push_back(-x);
  }
  std::mt19937 random(5);
  for (int i = 0; i < 200'003; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(x)) samples.push_back(x);
  }
  return samples;
}

TEST_P(HalfTest, RoundsToTheNearestAndTiesToEven) {
  const DataType type = GetParam();
  const std::vector<float> samples = Samples(type);
  std::vector<uint16_t> narrow;
  Convert(HalfVersions()[0], type, samples, &narrow);
  for (size_t i = 0; i < samples.size(); ++i) {
    const uint16_t sign = std::signbit(samples[i]) ? 0x8000 : 0;
    ASSERT_EQ(narrow[i], sign | NearestTo(std::abs(static_cast<double>(samples[i])), type))
        << std::hexfloat << samples[i];
  }
}

TEST_P(HalfTest, EveryVersionGivesTheSameBits) {
  const DataType type = GetParam();
  std::vector<float> samples = Samples(type);
  for (const uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xff812345u, 0x7fc00000u,
                              0xffffffffu, 0x00000001u, 0x80000001u}) {
    samples.push_back(std::bit_cast<float>(bits));
  }
  std::vector<uint16_t> expected, got;
  Convert(HalfVersions()[0], type, samples, &expected);
  for (const HalfVersion& version : HalfVersions()) {
    Convert(version, type, samples, &got);
    EXPECT_EQ(got, expected) << version.name;
  }
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide, other;
  Convert(HalfVersions()[0], type, all, &wide);
  for (const HalfVersion& version : HalfVersions()) {
    Convert(version, type, all, &other);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(other[i]), std::bit_cast<uint32_t>(wide[i]))
          << version.name << " " << i;
    }
  }
}

// Nothing after the last number is written, for any count and address.
TEST_P(HalfTest, EveryLengthAndAddress) {
  const DataType type = GetParam();
  for (const HalfVersion& version : HalfVersions()) {
    const auto narrow = type == DataType::kBf16 ? version.narrow_bf16 : version.narrow_fp16;
    const auto widen = type == DataType::kBf16 ? version.widen_bf16 : version.widen_fp16;
    for (int64_t count = 0; count < 70; ++count) {
      const std::vector<float> from(count + 1, 1.0f);
      std::vector<uint16_t> half(count + 2, 0x4321);
      narrow(from.data() + 1, half.data() + 1, count);
      EXPECT_EQ(half.front(), 0x4321);
      EXPECT_EQ(half.back(), 0x4321);
      std::vector<float> wide(count + 2, 7.0f);
      widen(half.data() + 1, wide.data() + 1, count);
      EXPECT_EQ(wide.front(), 7.0f);
      EXPECT_EQ(wide.back(), 7.0f);
      for (int64_t i = 1; i <= count; ++i) ASSERT_EQ(wide[i], 1.0f) << version.name << " " << i;
    }
  }
}

TEST_P(HalfTest, SumsAreRoundedOnce) {
  const DataType type = GetParam();
  const int64_t count = 3000;
  std::vector<float> a(count), b(count), sum(count);
  std::mt19937 random(3);
  for (int64_t i = 0; i < count; ++i) {
    a[i] = static_cast<float>(random() % 4096) - 2048;
    b[i] = static_cast<float>(random() % 4096) / 1024;
  }
  std::vector<uint16_t> narrow_a(count), narrow_b(count), expected(count);
  Narrow(type, a.data(), narrow_a.data(), count);
  Narrow(type, b.data(), narrow_b.data(), count);
  Widen(type, narrow_a.data(), a.data(), count);
  Widen(type, narrow_b.data(), b.data(), count);
  for (int64_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
  Narrow(type, sum.data(), expected.data(), count);
  AddNarrow(type, narrow_b.data(), narrow_a.data(), count);
  EXPECT_EQ(narrow_a, expected);
}

TEST_P(HalfTest, FindsWhatIsNotFinite) {
  const DataType type = GetParam();
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const size_t at : {0, 1, 99}) {
      std::vector<float> numbers(100, 1e30f);
      if (type == DataType::kFp16) numbers.assign(100, 65504);
      std::vector<uint16_t> narrow(100);
      Narrow(type, numbers.data(), narrow.data(), 100);
      EXPECT_TRUE(AllFinite(type, narrow.data(), 200));
      EXPECT_TRUE(AllFinite(DataType::kFp32, numbers.data(), 400));
      numbers[at] = bad;
      Narrow(type, numbers.data(), narrow.data(), 100);
      EXPECT_FALSE(AllFinite(type, narrow.data(), 200)) << bad << " at " << at;
      EXPECT_FALSE(AllFinite(DataType::kFp32, numbers.data(), 400)) << bad << " at " << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, HalfTest, ::testing::Values(DataType::kBf16, DataType::kFp16),
                         [](const ::testing::TestParamInfo<DataType>& info) {
                           return std::string(DataTypeName(info.param));
                         });

}  // namespace
}  // namespace starling
