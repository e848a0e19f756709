#include "tests/allocations/allocations.h"

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"

namespace starling {

// Outside the unnamed namespace, so that symbols have the names written here.
__attribute__((noinline)) void* TakeBytes(size_t bytes) {
  void* const memory = std::malloc(bytes);
  *static_cast<volatile char*>(memory) = 0;  // prevents a tail call, which would hide this frame
  return memory;
}
__attribute__((noinline)) void GrowVector(std::vector<int>& numbers) {
  for (int i = 0; i < 1000; ++i) numbers.push_back(i);
}
__attribute__((noinline)) void FillMessage(WorkerReport& report, const std::string& text) {
  report.add_links()->set_address(text);
}

namespace allocations {
namespace {

// Calls from stacks that start in a function whose name contains `name`.
uint64_t CallsFrom(const Report& report, const std::string& owner, const std::string& name) {
  uint64_t calls = 0;
  for (const Calls& of_stack : report.calls) {
    if (of_stack.owner == owner && of_stack.stack[0].find(name) != std::string::npos) {
      calls += of_stack.calls;
    }
  }
  return calls;
}

TEST(AllocationsTest, CountsOurCallsByFunction) {
  Arm();
  for (int i = 0; i < 3; ++i) std::free(TakeBytes(100));
  Disarm();
  std::free(TakeBytes(100));  // not counted
  const Report report = Read();
  EXPECT_EQ(CallsFrom(report, "ours", "starling::TakeBytes"), 3);
  EXPECT_EQ(report.CallsOf("ours"), 3);
  EXPECT_EQ(report.lost, 0);
}

TEST(AllocationsTest, CountsEachKindOfCall) {
  Arm();
  void* memory = std::realloc(nullptr, 10);
  memory = std::realloc(memory, 100000);
  std::free(memory);
  std::free(std::calloc(3, 5));
  std::free(std::aligned_alloc(64, 128));
  ASSERT_EQ(posix_memalign(&memory, 64, 128), 0);
  std::free(memory);
  int* volatile number = new int(4);  // volatile, or the compiler elides both
  delete number;
  Disarm();
  EXPECT_EQ(Read().CallsOf("ours"), 6);
}

TEST(AllocationsTest, TheStandardLibrarysCallsAreItsCallers) {
  std::vector<int> numbers;
  Arm();
  GrowVector(numbers);
  Disarm();
  EXPECT_EQ(CallsFrom(Read(), "ours", "starling::GrowVector"), 11);  // 1, 2, 4, ... 1024
}

TEST(AllocationsTest, ProtobufsCallsAreItsOwn) {
  WorkerReport report;
  const std::string text(100, 'x');
  Arm();
  FillMessage(report, text);
  Disarm();
  const Report counted = Read();
  EXPECT_EQ(counted.CallsOf("ours"), 0) << counted.calls[0].stack[0];
  EXPECT_GE(counted.CallsOf("protobuf"), 3);  // the message, its slot, its string
}

TEST(AllocationsTest, CountsAllThreads) {
  std::thread other([] { std::free(TakeBytes(1)); });
  other.join();
  Arm();
  std::thread([] {
    for (int i = 0; i < 1000; ++i) std::free(TakeBytes(16));
  }).join();
  Disarm();
  EXPECT_EQ(CallsFrom(Read(), "ours", "starling::TakeBytes"), 1000);
}

TEST(AllocationsTest, ArmForgetsWhatWasCounted) {
  Arm();
  std::free(TakeBytes(1));
  Disarm();
  Arm();
  Disarm();
  EXPECT_EQ(Read().CallsOf("ours"), 0);
}

TEST(AllocationsTest, BytesInUse) {
  const int64_t before = BytesInUse();
  void* memory = TakeBytes(1 << 20);
  EXPECT_GE(BytesInUse() - before, 1 << 20);
  memory = std::realloc(memory, 2 << 20);
  EXPECT_GE(BytesInUse() - before, 2 << 20);
  std::free(memory);
  EXPECT_LT(BytesInUse() - before, 1 << 10);
}

}  // namespace
}  // namespace allocations
}  // namespace starling
