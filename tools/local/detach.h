// Runs a function in a separate process that outlives this one.
#ifndef STARLING_TOOLS_LOCAL_DETACH_H_
#define STARLING_TOOLS_LOCAL_DETACH_H_

#include <functional>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"

namespace starling::local {

// Carries messages from the detached process to the one that waits for it.
class Announcer {
 public:
  virtual ~Announcer() = default;
  virtual void Out(const std::string& line) = 0;  // data
  virtual void Err(const std::string& line) = 0;  // progress
  // The last message: the start's exit code. Later lines go to the log only.
  virtual void Done(int exit_code) = 0;
};

// Forks twice (a new session, no terminal, `/` as its folder, its output appended to `log_path`)
// and runs `body` there. Call before any thread is started. Blocks until Done; copies announcements
// to `out` and `err`, and returns Done's exit code. kUnavailable: the system's reason, or the
// process ended without Done.
absl::StatusOr<int> RunDetached(const std::string& log_path, std::ostream& out, std::ostream& err,
                                const std::function<void(Announcer&)>& body);

}  // namespace starling::local

#endif  // STARLING_TOOLS_LOCAL_DETACH_H_
