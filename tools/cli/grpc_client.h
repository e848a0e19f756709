// The coordinator and the daemons over gRPC.
#ifndef STARLING_TOOLS_CLI_GRPC_CLIENT_H_
#define STARLING_TOOLS_CLI_GRPC_CLIENT_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/protocol/limits.h"
#include "common/transport/link_security.h"
#include "tools/cli/client.h"
#include "tools/cli/daemons.h"

namespace starling::cli {

struct GrpcClientOptions {
  std::string address;
  std::shared_ptr<const LinkSecurity> security = nullptr;
  // How long to retry an unreachable coordinator: it may be restarting.
  absl::Duration patience = absl::Seconds(3);
  absl::Duration call_deadline = absl::Seconds(10);
  // A worker inspects the data first. The coordinator answers before this.
  absl::Duration submit_deadline = absl::Minutes(limits::kSubmitMinutesMax + 1);
  absl::Duration checkpoint_deadline = absl::Minutes(limits::kCheckpointMinutesMax + 1);
};

// Connects with the first call.
std::unique_ptr<Client> MakeGrpcClient(const GrpcClientOptions& options);

// Connects to a daemon with the first call to it. One attempt a call.
std::unique_ptr<Daemons> MakeGrpcDaemons(std::shared_ptr<const LinkSecurity> security);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_GRPC_CLIENT_H_
