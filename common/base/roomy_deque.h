// A queue that has its memory from the begin.
#ifndef STARLING_COMMON_BASE_ROOMY_DEQUE_H_
#define STARLING_COMMON_BASE_ROOMY_DEQUE_H_

#include <cstddef>
#include <deque>
#include <memory_resource>

namespace starling {

// An empty deque whose elements come from `memory`, which must keep what it gets back (a pool):
// while no more than `elements` are in it, pushing at its end and popping at its front take nothing
// new.
template <typename T>
std::pmr::deque<T> RoomyDeque(size_t elements, std::pmr::memory_resource* memory) {
  // Cleared, it keeps its list of blocks, and `memory` the blocks. The list is used again, and not
  // made longer, while less than half of it is in use; as the queue moves on, one block more than
  // full ones is.
  constexpr size_t kMore = 2048 / sizeof(T) + 4;
  std::pmr::deque<T> deque(2 * elements + kMore, memory);
  deque.clear();
  return deque;
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_ROOMY_DEQUE_H_
