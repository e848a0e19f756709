// Asks a shard at its own address whether it lives.
#ifndef STARLING_SERVER_COORDINATOR_HOST_SHARD_ASKER_H_
#define STARLING_SERVER_COORDINATOR_HOST_SHARD_ASKER_H_

#include <functional>
#include <memory>
#include <string>

#include "common/transport/identity.h"
#include "common/transport/link_security.h"

namespace starling::coordinator {

// Thread-safe.
class ShardAsker {
 public:
  virtual ~ShardAsker() = default;  // waits for callbacks; none runs afterwards
  // Does not block. `answered` runs at most once, on any thread: a shard of this name has answered.
  // One that does not within a second is given up.
  virtual void Ask(const std::string& address, const std::string& name,
                   std::function<void()> answered) = 0;
};

// On gRPC: calls the shard's Daemon.Info, each time on a connection of its own.
std::unique_ptr<ShardAsker> MakeShardAsker(const Identity& self,
                                           std::shared_ptr<const LinkSecurity> security);

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_HOST_SHARD_ASKER_H_
