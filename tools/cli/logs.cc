// starling logs: the coordinator's notes about a job.
#include "tools/cli/exit_code.h"
#include "tools/cli/verbs.h"

namespace starling::cli {

int RunLogs(const std::string& name, bool follow, Client& client, Context& context) {
  constexpr double kFollowSeconds = 5;  // the coordinator holds the answer until there is news
  LogsRequest request;
  request.set_name(name);
  for (;;) {
    const auto reply = client.Logs(request);
    if (!reply.ok()) return Fail(reply.status(), context);
    for (const LogEntry& entry : reply->entries()) {
      context.out << entry.time() << "  " << entry.text() << "\n";
      request.set_after(entry.number());
    }
    context.out << std::flush;
    const bool all = reply->entries().empty();
    if (all && (!follow || IsEnd(reply->state()))) return kExitOk;
    request.set_wait_seconds(follow && !IsEnd(reply->state()) ? kFollowSeconds : 0);
  }
}

}  // namespace starling::cli
