// Memory for a partition's actions, which may have to wait for it.
#ifndef STARLING_SERVER_SHARD_HOST_ACTION_MEMORY_H_
#define STARLING_SERVER_SHARD_HOST_ACTION_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/time/time.h"
#include "server/shard/host/shard_memory.h"

namespace starling {

// Used on the owner's thread only.
class ActionMemory {
 public:
  explicit ActionMemory(ShardMemory* memory) : memory_(memory) {}  // which outlives it

  // Returns `reuse`, if given and not held elsewhere (by a stream, or as the copy of a cut), or new
  // memory. If there is none, closes streams to free some, since no job may fail because streams
  // hold memory without sending it. Null: none is free yet, and the action has to change nothing.
  std::shared_ptr<float> Allocate(size_t elements, const std::shared_ptr<float>* reuse = nullptr);

  // Elements for which the current action has no memory.
  size_t missing() const { return missing_; }

  // The action has been carried out.
  void Done() { deadline_ = absl::InfinitePast(); }
  // The action has no memory. Returns whether to try it again: streams were closed for it, and what
  // they were sending may still be freed.
  bool MayRetry(absl::Time now);

 private:
  ShardMemory* const memory_;
  size_t missing_ = 0;
  bool closed_streams_ = false;                 // in this attempt
  absl::Time deadline_ = absl::InfinitePast();  // InfinitePast: the action has not waited yet
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_ACTION_MEMORY_H_
