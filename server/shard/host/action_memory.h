// Memory for a partition's actions, which may have to wait for it.
#ifndef STARLING_SERVER_SHARD_HOST_ACTION_MEMORY_H_
#define STARLING_SERVER_SHARD_HOST_ACTION_MEMORY_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "server/shard/host/shard_memory.h"

namespace starling {

// Used on the owner's thread only.
class ActionMemory {
 public:
  // `memory` outlives it. `give_up` lets go of memory that the partition can do without; false: it
  // has none. `leads`: if not, only a copy is lost, for which no stream is closed that progresses.
  ActionMemory(ShardMemory* memory, std::function<bool()> give_up, std::function<bool()> leads)
      : memory_(memory), give_up_(std::move(give_up)), leads_(std::move(leads)) {}

  // Returns `reuse`, if given and not held elsewhere (by a stream, by a snapshot, or as the copy of
  // a cut), or new memory. If there is none, gives up what the partition can do without. If that
  // does not help in time, closes streams, since no job may fail because streams hold memory
  // without sending it. Null: none is free yet, and the action has to change nothing.
  std::shared_ptr<float> Allocate(size_t elements, const std::shared_ptr<float>* reuse = nullptr);

  // Elements for which the current action has no memory.
  size_t missing() const { return missing_; }

  // The action has been carried out.
  void Done() {
    deadline_ = absl::InfinitePast();
    gave_up_ = false;
  }
  // The action has no memory. Returns whether to try it again: what was given up, and then what
  // closed streams were sending, may still be freed, each within ShardMemory::kClosedAfter.
  // `patient`: others may free some, too.
  bool MayRetry(absl::Time now, bool patient);

 private:
  ShardMemory* const memory_;
  const std::function<bool()> give_up_;
  const std::function<bool()> leads_;
  size_t missing_ = 0;
  bool gave_up_ = false;                        // by this action, and no stream was closed since
  bool closed_streams_ = false;                 // in this attempt
  absl::Time deadline_ = absl::InfinitePast();  // InfinitePast: the action has not waited yet
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_ACTION_MEMORY_H_
