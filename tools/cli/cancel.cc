// starling cancel, starling delete.
#include "tools/cli/exit_code.h"
#include "tools/cli/verbs.h"

namespace starling::cli {

int RunCancel(const std::string& name, Client& client, Context& context) {
  const absl::Status status = client.CancelJob(name);
  if (!status.ok()) return Fail(status, context);
  context.err << "cancelled " << name << "; its last parameters stay until: starling delete " << name << "\n";
  return kExitOk;
}

int RunDelete(const std::string& name, Client& client, Context& context) {
  const absl::Status status = client.DeleteJob(name);
  if (!status.ok()) return Fail(status, context);
  context.err << "deleted " << name << "\n";
  return kExitOk;
}

}  // namespace starling::cli
