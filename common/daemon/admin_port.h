// Starts a daemon's admin port as its flags say.
#ifndef STARLING_COMMON_DAEMON_ADMIN_PORT_H_
#define STARLING_COMMON_DAEMON_ADMIN_PORT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/admin/admin.h"
#include "common/daemon/daemon.h"
#include "common/transport/identity.h"

namespace starling {

// Starts serving, writes flags.admin_port_file and logs the address. Errors name the flag.
absl::StatusOr<std::unique_ptr<admin::Admin>> StartAdminPort(const DaemonFlags& flags,
                                                             const Identity& self);

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_ADMIN_PORT_H_
