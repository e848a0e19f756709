#include "kernels/cuda/alignment.h"

#include "gtest/gtest.h"

namespace starling::cuda {
namespace {

TEST(AlignmentTest, ScratchIsAlignedAndFits) {
  alignas(256) static char memory[4096];
  for (size_t offset : {size_t{0}, size_t{64}, size_t{192}, size_t{255}}) {
    for (size_t bytes : {size_t{1}, size_t{256}, size_t{1000}}) {
      char* const begin = memory + offset;
      char* const aligned = static_cast<char*>(AlignedScratch(begin));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned) % 256, 0u);
      EXPECT_GE(aligned, begin);
      EXPECT_LE(aligned + bytes, begin + ScratchBytes(bytes));
    }
  }
  EXPECT_EQ(ScratchBytes(0), 0u);
  EXPECT_EQ(AlignedScratch(nullptr), nullptr);
}

}  // namespace
}  // namespace starling::cuda
