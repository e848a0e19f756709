// Finds the coordinator's address.
#ifndef STARLING_TOOLS_CLI_ADDRESS_H_
#define STARLING_TOOLS_CLI_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "tools/cli/context.h"

namespace starling::cli {

// ${XDG_STATE_HOME:-~/.local/state}/starling/local: what `starling local` uses without --state.
// kFailedPrecondition when neither XDG_STATE_HOME nor HOME is set.
absl::StatusOr<std::string> DefaultStateDirectory(const Context& context);

// `given` (--coordinator or $STARLING_COORDINATOR), else the address in the file that `local up`
// wrote. kUnavailable if there is neither: says where it looked and how to start a cluster.
absl::StatusOr<std::string> CoordinatorAddress(const std::string& given, const Context& context);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_ADDRESS_H_
