// The client's verbs: one function and one file each. Flags are read by app.cc. All return the
// process's exit code (exit_code.h), write data to context.out and everything else to context.err.
#ifndef STARLING_TOOLS_CLI_VERBS_H_
#define STARLING_TOOLS_CLI_VERBS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/cli/client.h"
#include "tools/cli/context.h"

namespace starling::cli {

enum class Format { kTable, kJson, kYaml };
enum class Kind { kJob, kWorker, kShard };

struct SubmitOptions {
  std::string file;
  std::vector<std::string> overrides;  // --set
  bool watch = false;
  bool dry_run = false;
};
// Connects only once the file is known to be good.
using Connector = std::function<absl::StatusOr<std::unique_ptr<Client>>()>;
int RunSubmit(const SubmitOptions& options, const Connector& connect, Context& context);

// A list of all, in the coordinator's order.
int RunGet(Kind kind, Format format, Client& client, Context& context);

// All that is known of one.
int RunDescribe(Kind kind, const std::string& name, Format format, Client& client, Context& context);

// The job's log; with `follow` until the job has ended.
int RunLogs(const std::string& name, bool follow, Client& client, Context& context);

// Follows the job to its end: progress on err, then test_accuracy on out. Bounded by `timeout`.
int RunWait(const std::string& name, absl::Duration timeout, Client& client, Context& context);

int RunCancel(const std::string& name, Client& client, Context& context);
int RunDelete(const std::string& name, Client& client, Context& context);

// Its parameters, statistics included, as a safetensors file: those at its end, or while it runs those
// of the newest epoch that was evaluated. Without either it refuses (kExitError).
int RunExport(const std::string& name, const std::string& file, Client& client, Context& context);

int RunSchema(Context& context);
int RunVersion(Context& context);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_VERBS_H_
