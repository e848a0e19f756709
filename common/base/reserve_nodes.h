// Preallocates the nodes of std::pmr::map and set.
#ifndef STARLING_COMMON_BASE_RESERVE_NODES_H_
#define STARLING_COMMON_BASE_RESERVE_NODES_H_

#include <cstddef>

namespace starling {

// Reserves memory for `elements` more nodes of `container`, provided that nothing else with nodes
// of about that size draws from its memory_resource, and that the resource keeps what it gets back
// (a pool). Not thread-safe. `key_of(i)`: distinct keys for i in [0, elements); which keys, and
// whether the container has them, does not matter.
template <typename Container, typename KeyOf>
void ReserveNodes(size_t elements, KeyOf key_of, Container* container) {
  // Destroying this container returns the nodes to the pool.
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
