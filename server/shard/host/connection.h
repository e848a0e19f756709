// A peer's stream to this shard. It passes each frame to its partition's owner, and tells the
// partitions when the stream ends.
#ifndef STARLING_SERVER_SHARD_HOST_CONNECTION_H_
#define STARLING_SERVER_SHARD_HOST_CONNECTION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/sync/mutex.h"
#include "common/transport/link_security.h"
#include "common/transport/transport.h"
#include "server/shard/host/routes.h"
#include "server/shard/host/shard_connection.h"
#include "server/shard/host/shard_memory.h"

namespace starling {

// Thread-safe. Frames arrive on the transport's thread.
class Connection final : public StreamHandler,
                         public ShardConnection,
                         public ValueStream,
                         public std::enable_shared_from_this<Connection> {
 public:
  // Everything here outlives the connection.
  struct Shard {
    const Routes* routes = nullptr;
    const ShardMemory* memory = nullptr;
    const EventLoop* clock = nullptr;
    std::shared_ptr<const LinkSecurity> security;
    absl::Duration queue_wait;  // injected
  };
  Connection(ConnectionId id, std::shared_ptr<FrameStream> stream, const Identity& peer,
             const Shard& shard);

  ConnectionId id() const override { return id_; }
  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override;
  void OnDown(const absl::Status& status) override;
  void Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) override;
  Load load() override;
  void CloseForMemory(const std::string& why) override;

 private:
  double NoteProgress(const FrameStream::Stats& stats);
  void End(const absl::Status& why);
  void RefuseNotHosted(const FrameHeader& header);
  bool MaySpeak(const FrameHeader& header) const;
  absl::Status CheckQueue(const FrameStream::Stats& stats, size_t bytes) const;
  bool down() const;
  void Forget();

  const ConnectionId id_;
  const std::shared_ptr<FrameStream> stream_;
  const std::string peer_;
  const std::string name_;
  const PeerRole role_;
  const Shard shard_;
  mutable Mutex mutex_;
  bool down_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t sent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // at the last progress
  absl::Time progress_ ABSL_GUARDED_BY(mutex_);
  std::map<Routes::Key, std::shared_ptr<HostedPartition>> partitions_ ABSL_GUARDED_BY(mutex_);
};

// The connection of partitions of this shard to the deciding partition on the same shard.
class LocalConnection final : public ShardConnection {
 public:
  using Answer = std::function<void(const FrameHeader& header, std::string text)>;
  LocalConnection(ConnectionId id, Answer answer) : id_(id), answer_(std::move(answer)) {}
  ConnectionId id() const override { return id_; }
  void Send(const FrameHeader& header, OutgoingPayload payload, int64_t) override {
    answer_(header, std::string(payload.bytes.begin(), payload.bytes.end()));
  }

 private:
  const ConnectionId id_;
  const Answer answer_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_CONNECTION_H_
