// starling submit: a job file to the coordinator.
#include "tools/cli/exit_code.h"
#include "tools/cli/init_file.h"
#include "tools/cli/output.h"
#include "tools/cli/read_job_file.h"
#include "tools/cli/verbs.h"
#include "tools/cli/watch.h"

namespace starling::cli {

int RunSubmit(const SubmitOptions& options, const Connector& connect, Context& context) {
  auto spec = ReadJobFile(options.file, options.overrides, context.environment);
  if (!spec.ok()) return Fail(spec.status(), context);
  if (const absl::Status init = ReadInitFile(&*spec); !init.ok()) return Fail(init, context);
  const auto client = connect();
  if (!client.ok()) return Fail(client.status(), context);
  SubmitRequest request;
  *request.mutable_spec() = *std::move(spec);
  request.set_dry_run(options.dry_run);
  request.set_nonce(context.random());
  const auto reply = (*client)->Submit(request);
  if (!reply.ok()) return Fail(reply.status(), context);
  const std::string& name = request.spec().name();
  if (options.dry_run) {
    context.out << name << ": valid, not submitted (" << CountText(reply->status().parameters())
                << " parameters)\n";
    return kExitOk;
  }
  context.err << "submitted " << name << "\n" << std::flush;
  if (!options.watch) return kExitOk;
  context.catch_interrupts();
  return WatchJob(name, absl::InfiniteFuture(), **client, context);
}

}  // namespace starling::cli
