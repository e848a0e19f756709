// Follows a job to its end, for `submit --watch` and `wait`.
#ifndef STARLING_TOOLS_CLI_WATCH_H_
#define STARLING_TOOLS_CLI_WATCH_H_

#include <string>

#include "absl/time/time.h"
#include "tools/cli/client.h"
#include "tools/cli/context.h"

namespace starling::cli {

// Shows progress on context.err: a live line on a terminal, otherwise a line every two seconds; in
// both cases a line per epoch, or per evaluation if the job evaluates. Returns when the job ends
// and the file of its spec.output, if any, is written (its exit code, kExitError if it succeeded
// and the file could not be written; test_accuracy=... on out if it succeeded and evaluated), at
// `deadline` (kExitTimeout), on Ctrl-C (kExitOk; the job continues, and it says how to follow it
// again), or when the coordinator was unreachable for 30 s (kExitUnreachable).
absl::StatusOr<int> WatchJob(const std::string& name, absl::Time deadline, Client& client,
                             Context& context);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_WATCH_H_
