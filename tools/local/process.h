// Child processes that cannot outlive their parent.
#ifndef STARLING_TOOLS_LOCAL_PROCESS_H_
#define STARLING_TOOLS_LOCAL_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace starling::local {

// Starts argv[0] (a path), with its output appended to `log_path` and its input read from
// `input_path`, in its own process group, so that Ctrl-C reaches only the caller. The kernel kills
// it when the calling thread ends: call it on the main thread. kNotFound, kUnavailable with the
// system's reason.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv, const std::string& log_path,
                            const std::string& input_path = "/dev/null");

// "exited with status 1", "was killed by signal 9".
std::string ExitText(int wait_status);

// Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD from now on, for TakeSignal. Call before any thread is
// started.
void HoldSignals();

// The next held signal; nullopt after `patience`.
absl::optional<int> TakeSignal(absl::Duration patience);

}  // namespace starling::local

#endif  // STARLING_TOOLS_LOCAL_PROCESS_H_
