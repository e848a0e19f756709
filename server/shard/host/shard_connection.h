// A peer's stream, as seen by partitions.
#ifndef STARLING_SERVER_SHARD_HOST_SHARD_CONNECTION_H_
#define STARLING_SERVER_SHARD_HOST_SHARD_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/protocol/frame.h"
#include "common/transport/transport.h"
#include "server/shard/core/events.h"

namespace starling {

// Thread-safe.
class ShardConnection {
 public:
  virtual ~ShardConnection() = default;
  virtual ConnectionId id() const = 0;
  virtual void Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) = 0;
};

// Makes `text` the frame's payload.
OutgoingPayload TextPayload(std::string text, FrameHeader* header);

// Makes a slice's value the frame's payload, which keeps it alive. `digest` is that of its bytes;
// 0, not known yet, is replaced.
OutgoingPayload ValuePayload(std::shared_ptr<const float> value, size_t elements, uint64_t* digest,
                             FrameHeader* header);

// Answers `request` with an error and a text.
void SendRefusal(ShardConnection& to, const FrameHeader& request, Answer answer, std::string text);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_CONNECTION_H_
