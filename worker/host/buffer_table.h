// The buffers behind the session's BufferIds.
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
#include "worker/host/parameter_copy.h"

namespace starling {

// A value that has arrived and is not installed yet.
struct ArrivedValue {
  ReceivedPayload payload;
  SliceArrival arrival;
};
using HeldBuffer = std::variant<std::shared_ptr<GradientBuffer>, ArrivedValue>;

// Used by one thread.
class BufferTable {
 public:
  BufferId Add(HeldBuffer buffer) {
    const BufferId id(++last_);
    held_.emplace(id, std::move(buffer));
    return id;
  }
  // The buffer must exist and be a gradient.
  const std::shared_ptr<GradientBuffer>& Gradient(BufferId id) const {
    return std::get<std::shared_ptr<GradientBuffer>>(held_.at(id));
  }
  // The buffer must exist and be a value, which is moved to the caller.
  ArrivedValue TakeValue(BufferId id) {
    const auto it = held_.find(id);
    ArrivedValue value = std::get<ArrivedValue>(std::move(it->second));
    held_.erase(it);
    return value;
  }
  void Release(BufferId id) { held_.erase(id); }
  size_t size() const { return held_.size(); }
  // This many more buffers need no allocation.
  void Reserve(size_t buffers) {
    ReserveNodes(
        buffers, [](uint64_t i) { return BufferId(i); }, &held_);
  }

 private:
  uint64_t last_ = 0;
  std::pmr::unsynchronized_pool_resource memory_;  // reused
  std::pmr::map<BufferId, HeldBuffer> held_{&memory_};
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_BUFFER_TABLE_H_
