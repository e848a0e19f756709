// A daemon's role as messages have it.
#ifndef STARLING_COMMON_DAEMON_ROLE_H_
#define STARLING_COMMON_DAEMON_ROLE_H_

#include "common/transport/identity.h"
#include "proto/coordinator.pb.h"

namespace starling {

inline Role RoleOf(PeerRole role) {
  static_assert(static_cast<int>(PeerRole::kClient) == CLIENT);
  static_assert(static_cast<int>(PeerRole::kWorker) == WORKER);
  static_assert(static_cast<int>(PeerRole::kShard) == SHARD);
  static_assert(static_cast<int>(PeerRole::kCoordinator) == COORDINATOR);
  return static_cast<Role>(role);
}

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_ROLE_H_
