// Takes the shards' heartbeats, on a thread of its own: nothing that the coordinator's own thread
// does, such as waiting for its disk, delays one. Decides nothing: the core gets what came with its
// next tick, and has shards asked.
#ifndef STARLING_SERVER_COORDINATOR_HOST_HEARTBEAT_DESK_H_
#define STARLING_SERVER_COORDINATOR_HOST_HEARTBEAT_DESK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/event_loop/event_loop.h"
#include "common/sync/mutex.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/host/shard_asker.h"

namespace starling::coordinator {

// Thread-safe.
class HeartbeatDesk {
 public:
  using Done = std::function<void(absl::StatusOr<HeartbeatReply>)>;

  // A heartbeat is held for `hold`, or until its shard is asked. `asker` may be null: none is asked
  // at its own address.
  HeartbeatDesk(absl::Duration hold, std::unique_ptr<ShardAsker> asker,
                const MakeEventLoop& make_loop);
  ~HeartbeatDesk();  // Stop()

  // `caller`: the name in the connection's identity. Returns the id for Gone. `done` runs once, on
  // the desk's thread, or on that of the caller or of Stop once it was stopped: kUnavailable.
  uint64_t Take(const HeartbeatRequest& request, const std::string& caller, Done done);
  // The caller's connection broke, or it hung up: `done` runs with kCancelled, unless it has run.
  void Gone(uint64_t call);

  void Ask(const action::AskShard& question);

  // What came since the last time, in order; at most one heartbeat of each caller and incarnation,
  // the last, and one answer to a call.
  std::vector<event::Heartbeat> TakeAll();

  // Idempotent.
  void Stop();

 private:
  struct Held {
    HeartbeatRequest request;
    std::string caller;
    Done done;
    EventLoop::TimerId timer = 0;
  };

  void Note(event::Heartbeat heartbeat);
  void Hold(uint64_t call, Held held);
  uint64_t QuestionTo(const HeartbeatRequest& request) const;
  void Answer(uint64_t call, absl::StatusOr<HeartbeatReply> reply);

  const absl::Duration hold_;
  std::atomic<uint64_t> next_call_ = 1;

  Mutex mutex_;
  std::vector<event::Heartbeat> came_ ABSL_GUARDED_BY(mutex_);

  // The loop's thread only.
  std::map<uint64_t, Held> held_;               // by call
  std::map<uint32_t, action::AskShard> asked_;  // by shard: the newest question
  std::unique_ptr<ShardAsker> asker_;           // its callbacks end before the rest

  std::unique_ptr<EventLoop> loop_;  // last: its thread ends first
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_HOST_HEARTBEAT_DESK_H_
