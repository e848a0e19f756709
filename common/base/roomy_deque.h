// A preallocated queue.
#ifndef STARLING_COMMON_BASE_ROOMY_DEQUE_H_
#define STARLING_COMMON_BASE_ROOMY_DEQUE_H_

#include <cstddef>
#include <deque>
#include <memory_resource>

namespace starling {

// An empty deque with elements from `memory`, which must keep what it gets back (a pool). While it
// has at most `elements` elements, push_back and pop_front allocate nothing.
template <typename T>
std::pmr::deque<T> RoomyDeque(size_t elements, std::pmr::memory_resource* memory) {
  // After clear() the deque keeps its block list, and `memory` the blocks. The list is reused, and
  // not grown, while less than half of it is in use; a moving queue uses one block more than it
  // fills.
  constexpr size_t kMore = 2048 / sizeof(T) + 4;
  std::pmr::deque<T> deque(2 * elements + kMore, memory);
  deque.clear();
  return deque;
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_ROOMY_DEQUE_H_
