#include "common/base/memory.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

namespace starling {
namespace {

TEST(Memory, SomeIsAvailable) { EXPECT_GT(AvailableMemoryBytes(), uint64_t{1} << 20); }

// mmap takes memory from the kernel and gives it back: malloc might keep it, and ASan's does.
TEST(Memory, ThePeakIsThatOfTheProcess) {
  constexpr size_t kBytes = size_t{32} << 20;
  ASSERT_GT(PeakResidentBytes(), 0u);
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  ASSERT_EQ(munmap(memory, kBytes), 0);
  const uint64_t peak = PeakResidentBytes();
  EXPECT_GE(peak, kBytes);
  ForgetPeakResidentBytes();
  EXPECT_LT(PeakResidentBytes(), peak - kBytes / 2);
}

TEST(Memory, FloatsAreAligned) {
  for (const size_t n : {0, 1, 15, 16, 17, 100'000}) {
    const std::shared_ptr<float> floats = AllocateFloats(n);
    ASSERT_NE(floats, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(floats.get()) % 64, 0u);
    for (size_t i = 0; i < n; ++i) floats.get()[i] = static_cast<float>(i);
  }
}

#ifndef STARLING_SANITIZED
uint64_t ResidentBytes() {
  uint64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Live blocks lie between the freed ones, so the heap does not shrink by itself.
TEST(Memory, WhatWasFreedGoesBackToTheSystem) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  constexpr size_t kBlock = 1 << 20, kBlocks = 400;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::make_unique<char[]>(kBlock));  // zeroed: every page is resident
  }
  const uint64_t full = ResidentBytes();
  for (size_t i = 0; i < kBlocks; ++i) {
    if (i % 100 != 99) blocks[i].reset();
  }
  EXPECT_GT(ResidentBytes() + 100 * kBlock, full) << "freeing alone gives nothing back";
  ReturnFreedMemory();
  EXPECT_LT(ResidentBytes() + 200 * kBlock, full);
}
#endif

}  // namespace
}  // namespace starling
