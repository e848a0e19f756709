// Finds the coordinator and the checkpoints, which may be those of `starling local`.
#ifndef STARLING_TOOLS_CLI_LOCAL_H_
#define STARLING_TOOLS_CLI_LOCAL_H_

#include <string>

#include "absl/status/statusor.h"
#include "tools/cli/context.h"

namespace starling::cli {

// `given` (--coordinator or $STARLING_COORDINATOR), else the address in the file that `local up`
// wrote. kUnavailable if there is neither: says where it looked and how to start a cluster.
absl::StatusOr<std::string> CoordinatorAddress(const std::string& given, const Context& context);

// Where the checkpoints of the local cluster lie, whether or not it runs. kFailedPrecondition: no
// variable says where its folder is.
absl::StatusOr<std::string> LocalCheckpointRoot(const Context& context);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_LOCAL_H_
