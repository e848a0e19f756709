#include "common/base/memory.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(Memory, SomeIsAvailable) { EXPECT_GT(AvailableMemoryBytes(), uint64_t{1} << 20); }

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
