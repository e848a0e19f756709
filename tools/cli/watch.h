// Follows a job to its end: what `submit --watch` and `wait` share.
#ifndef STARLING_TOOLS_CLI_WATCH_H_
#define STARLING_TOOLS_CLI_WATCH_H_

#include <string>

#include "absl/time/time.h"
#include "tools/cli/client.h"
#include "tools/cli/context.h"

namespace starling::cli {

// Progress on context.err: a live line on a terminal, else a line every two seconds; in both a line
// per epoch, or per evaluation where the job evaluates. Ends with the job (its exit code;
// test_accuracy=... on out where it succeeded and evaluated), at `deadline` (kExitTimeout), with
// Ctrl-C (kExitOk; the job goes on, and it says how to come back), or when the coordinator was not
// reached for 30 s (kExitUnreachable).
int WatchJob(const std::string& name, absl::Time deadline, Client& client, Context& context);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_WATCH_H_
