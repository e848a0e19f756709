// starling local up | down: a cluster on this machine (implemented by tools/local).
#ifndef STARLING_TOOLS_CLI_LOCAL_H_
#define STARLING_TOOLS_CLI_LOCAL_H_

#include <string>

#include "tools/cli/context.h"

namespace starling::cli {

struct LocalUpOptions {
  int shards = 2;
  int workers = 2;
  bool detach = false;
  bool no_restart = false;
  int port = 0;
  std::string binary_directory;  // empty: next to the client
  std::string state_directory;   // empty: the default
};

// Starts the cluster, waits until all daemons have registered (says which are missing), prints
// address=... on out, and then, unless `detach`, keeps it running until Ctrl-C.
int RunLocalUp(const LocalUpOptions& options, Context& context);

// Stops it. kExitOk even if none runs.
int RunLocalDown(const std::string& state_directory, Context& context);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_LOCAL_H_
