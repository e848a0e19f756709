#include "common/base/roomy_deque.h"

#include <gtest/gtest.h>

#include <array>

#include "common/testing/counting_memory.h"

namespace starling {
namespace {

template <typename T>
void ExpectRoom(size_t elements) {
  CountingMemory memory;
  std::pmr::unsynchronized_pool_resource pool;
  std::pmr::deque<T> deque = RoomyDeque<T>(elements, &pool);
  EXPECT_TRUE(deque.empty());
  const int at_first = memory.allocations();
  // Filled, then emptied, then moving with `keep` elements in it.
  for (size_t keep = 0; keep < elements; keep += 1 + elements / 7) {
    while (deque.size() < elements) deque.emplace_back();
    while (deque.size() > keep) deque.pop_front();
    for (size_t i = 0; i < 10 * elements; ++i) {
      deque.emplace_back();
      deque.pop_front();
    }
  }
  EXPECT_EQ(memory.allocations(), at_first) << elements << " of " << sizeof(T) << " bytes";
  deque.resize(20 * elements + 10000);
  EXPECT_GT(memory.allocations(), at_first);
}

TEST(RoomyDeque, TakesNothingWhileThereIsRoom) {
  for (const size_t elements : {1, 2, 7, 64, 500}) {
    ExpectRoom<char>(elements);
    ExpectRoom<std::array<char, 100>>(elements);
    ExpectRoom<std::array<char, 400>>(elements);
    ExpectRoom<std::array<char, 1000>>(elements);
  }
}

}  // namespace
}  // namespace starling
