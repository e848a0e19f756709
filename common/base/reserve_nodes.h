// Containers of nodes (std::pmr::map, set) that have their memory from the begin.
#ifndef STARLING_COMMON_BASE_RESERVE_NODES_H_
#define STARLING_COMMON_BASE_RESERVE_NODES_H_

#include <cstddef>

namespace starling {

// From now on `container` takes `elements` more before it allocates, if nothing else with nodes of
// about its size draws from its memory_resource, which must keep what it gets back (a pool). Not
// thread-safe. `key_of(i)`: a key for each i in [0, elements), all different; which ones, and
// whether the container has them, is all one.
template <typename Container, typename KeyOf>
void ReserveNodes(size_t elements, KeyOf key_of, Container* container) {
  // What is taken out again leaves its memory behind.
  Container room(container->get_allocator());
  for (size_t i = 0; i < elements; ++i) {
    if constexpr (requires { typename Container::mapped_type; }) {
      room.try_emplace(key_of(i));
    } else {
      room.insert(key_of(i));
    }
  }
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_RESERVE_NODES_H_
