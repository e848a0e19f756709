// Daemons over gRPC.
#ifndef STARLING_TOOLS_CLI_GRPC_DAEMONS_H_
#define STARLING_TOOLS_CLI_GRPC_DAEMONS_H_

#include <memory>

#include "common/transport/link_security.h"
#include "tools/cli/daemons.h"

namespace starling::cli {

std::unique_ptr<Daemons> MakeGrpcDaemons(std::shared_ptr<const LinkSecurity> security = nullptr);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_GRPC_DAEMONS_H_
