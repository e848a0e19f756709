// What a BufferId of the session stands for: bytes that the runtime holds.
#ifndef STARLING_WORKER_HOST_BUFFER_TABLE_H_
#define STARLING_WORKER_HOST_BUFFER_TABLE_H_

#include <map>
#include <memory>
#include <memory_resource>
#include <utility>
#include <variant>

#include "common/base/reserve_nodes.h"
#include "common/protocol/ids.h"
#include "common/transport/payload.h"
#include "worker/host/gradient_pool.h"
#include "worker/host/slice_versions.h"

namespace starling {

struct HeldGradient {
  std::shared_ptr<GradientBuffer> buffer;
  uint64_t digest = 0;
};
struct HeldValue {
  ReceivedPayload payload;
  SliceArrival arrival;
};
using HeldBuffer = std::variant<HeldGradient, HeldValue>;

// Used by one thread.
class BufferTable {
 public:
  BufferId Add(HeldBuffer buffer) {
    const BufferId id(++last_);
    held_.emplace(id, std::move(buffer));
    return id;
  }
  // nullptr: no such buffer.
  const HeldBuffer* Find(BufferId id) const {
    const auto it = held_.find(id);
    return it == held_.end() ? nullptr : &it->second;
  }
  void Release(BufferId id) { held_.erase(id); }
  size_t size() const { return held_.size(); }
  // So many more take no memory.
  void Reserve(size_t buffers) {
    ReserveNodes(
        buffers, [](uint64_t i) { return BufferId(i); }, &held_);
  }

 private:
  uint64_t last_ = 0;
  std::pmr::unsynchronized_pool_resource memory_;  // used again
  std::pmr::map<BufferId, HeldBuffer> held_{&memory_};
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_BUFFER_TABLE_H_
