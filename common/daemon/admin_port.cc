#include "common/daemon/admin_port.h"

#include <spdlog/spdlog.h>

#include "common/base/status_macros.h"

namespace starling {

absl::StatusOr<std::unique_ptr<admin::Admin>> StartAdminPort(const DaemonFlags& flags,
                                                             const Identity& self) {
  STARLING_ASSIGN_OR_RETURN(std::unique_ptr<admin::Admin> admin,
                            admin::Admin::Start(flags.admin_address, self));
  STARLING_RETURN_IF_ERROR(WritePortFile(flags.admin_port_file, admin->port()));
  spdlog::info("the admin port is http://{}/ (metrics, healthz, readyz)", admin->address());
  return admin;
}

}  // namespace starling
