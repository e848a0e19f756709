#include "common/base/reserve_nodes.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory_resource>
#include <set>

#include "common/testing/counting_memory.h"

namespace starling {
namespace {

template <typename Container>
void ExpectRoom(size_t elements, void (*add)(Container*, int)) {
  CountingMemory memory;
  std::pmr::unsynchronized_pool_resource pool;
  Container container(&pool);
  for (int i = 0; i < 3; ++i) add(&container, i);
  ReserveNodes(
      elements, [](size_t i) { return static_cast<int>(i); }, &container);
  EXPECT_EQ(container.size(), 3u);
  const int at_first = memory.allocations();
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t i = 0; i < elements; ++i) add(&container, static_cast<int>(100 + i));
    EXPECT_EQ(container.size(), elements + 3);
    for (size_t i = 0; i < elements; ++i) container.erase(static_cast<int>(100 + i));
  }
  EXPECT_EQ(memory.allocations(), at_first) << elements;
  for (size_t i = 0; i < 20 * elements + 10000; ++i) add(&container, static_cast<int>(100 + i));
  EXPECT_GT(memory.allocations(), at_first);
}

TEST(ReserveNodes, SoManyMoreTakeNothing) {
  for (const size_t elements : {1, 7, 64, 500}) {
    ExpectRoom<std::pmr::set<int>>(elements, [](auto* set, int key) { set->insert(key); });
    ExpectRoom<std::pmr::map<int, std::array<char, 300>>>(
        elements, [](auto* map, int key) { map->try_emplace(key); });
  }
}

}  // namespace
}  // namespace starling
