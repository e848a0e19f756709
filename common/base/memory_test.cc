#include "common/base/memory.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(Memory, SomeIsAvailable) { EXPECT_GT(AvailableMemoryBytes(), uint64_t{1} << 20); }

TEST(Memory, ThePeakIsThatOfTheProcess) {
  constexpr size_t kFloats = 8 << 20;
  const uint64_t before = PeakResidentBytes();
  EXPECT_GT(before, 0u);
  {
    const std::shared_ptr<float> floats = AllocateFloats(kFloats);
    for (size_t i = 0; i < kFloats; ++i) floats.get()[i] = 1;
  }
  const uint64_t peak = PeakResidentBytes();
  EXPECT_GE(peak, kFloats * sizeof(float));
  ForgetPeakResidentBytes();
  EXPECT_LE(PeakResidentBytes(), peak);
}

TEST(Memory, FloatsAreAligned) {
  for (const size_t n : {0, 1, 15, 16, 17, 100'000}) {
    const std::shared_ptr<float> floats = AllocateFloats(n);
    ASSERT_NE(floats, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(floats.get()) % 64, 0u);
    for (size_t i = 0; i < n; ++i) floats.get()[i] = static_cast<float>(i);
  }
}

}  // namespace
}  // namespace starling
