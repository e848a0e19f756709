// The real DaemonPeer.
#ifndef STARLING_TOOLS_CLI_GRPC_DAEMON_PEER_H_
#define STARLING_TOOLS_CLI_GRPC_DAEMON_PEER_H_

#include <memory>
#include <string>

#include "common/transport/link_security.h"
#include "tools/cli/daemon_peer.h"

namespace starling::cli {

std::unique_ptr<DaemonPeer> MakeGrpcDaemonPeer(
    const std::string& address, std::shared_ptr<const LinkSecurity> security = nullptr);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_GRPC_DAEMON_PEER_H_
