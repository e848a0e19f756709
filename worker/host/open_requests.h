// The requests that a worker has sent to shards and that are not answered yet.
#ifndef STARLING_WORKER_HOST_OPEN_REQUESTS_H_
#define STARLING_WORKER_HOST_OPEN_REQUESTS_H_

#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/protocol/frame.h"
#include "common/protocol/ids.h"

namespace starling {

// Not thread-safe.
class OpenRequests {
 public:
  struct Request {
    FrameType type = FrameType::kPush;  // or kPull, kClose
    absl::Time sent;
    Clock clock = 0;
    SliceId slice;
    uint64_t flow = 0;  // of a push; see common/trace/flow.h
    WorkerId repeats;   // of a push: whose part it is, too; 0: nobody's
  };

  // This many more requests may be open without an allocation.
  void Reserve(size_t requests);

  // A pull replaces the previous one of its slice and purpose, which gets no answer.
  void Sent(ShardId shard, const FrameHeader& header, uint64_t flow, WorkerId repeats,
            absl::Time now);
  // Removes the request and returns it; nullopt: it is not open.
  std::optional<Request> Answered(ShardId shard, uint64_t request_id);
  void Forget(ShardId shard);  // its stream ended
  void Clear();

  // Whether any push or pull is open.
  bool transferring() const;

 private:
  using Id = std::pair<ShardId, uint64_t>;

  std::pmr::unsynchronized_pool_resource memory_;  // reused
  std::pmr::map<Id, Request> open_{&memory_};
  std::map<std::pair<SliceId, bool>, Id> newest_pull_;  // second of the key: for evaluation
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_OPEN_REQUESTS_H_
