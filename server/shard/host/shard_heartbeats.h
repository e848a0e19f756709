// Tells the coordinator, all the time, that this process lives: on a thread and a connection of its
// own, so that no plan, no report and no order delays it.
#ifndef STARLING_SERVER_SHARD_HOST_SHARD_HEARTBEATS_H_
#define STARLING_SERVER_SHARD_HOST_SHARD_HEARTBEATS_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/daemon/coordinator_client.h"
#include "common/event_loop/event_loop.h"
#include "common/protocol/ids.h"

namespace starling {

// Thread-safe.
class ShardHeartbeats {
 public:
  // `client`: for heartbeats alone.
  ShardHeartbeats(std::unique_ptr<EventLoop> loop, std::unique_ptr<CoordinatorClient> client);
  ~ShardHeartbeats();  // Stop()

  // For this incarnation from now on.
  void Begin(ShardId shard, Incarnation incarnation, uint64_t cluster);
  // This process is no shard of the cluster until it has registered again.
  void Pause();

  // Cancels the call under way. Do not call it from a callback of the client's. Idempotent.
  void Stop();

 private:
  void Send();
  void OnReply(const absl::StatusOr<HeartbeatReply>& reply);

  // The loop's thread only.
  std::optional<HeartbeatRequest> request_;  // unset: not registered
  bool under_way_ = false;
  bool waits_ = false;  // for the next one's time
  absl::Time sent_at_;
  std::unique_ptr<CoordinatorClient> client_;

  const std::unique_ptr<EventLoop> loop_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_HEARTBEATS_H_
