// starling wait: follows a job to its end.
#include "tools/cli/verbs.h"
#include "tools/cli/watch.h"

namespace starling::cli {

int RunWait(const std::string& name, absl::Duration timeout, Client& client, Context& context) {
  context.catch_interrupts();
  return WatchJob(name, context.now() + timeout, client, context);
}

}  // namespace starling::cli
