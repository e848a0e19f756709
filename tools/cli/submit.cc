// starling submit: a job file to the coordinator.
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/init_file.h"
#include "tools/cli/output.h"
#include "tools/cli/read_job_file.h"
#include "tools/cli/verbs.h"
#include "tools/cli/watch.h"

namespace starling::cli {
namespace {

constexpr absl::Duration kSayEvery = absl::Seconds(10);

// A worker looks at the data first, which takes minutes where there is much of it.
absl::StatusOr<SubmitReply> Submit(const SubmitRequest& request, Client& client, Context& context) {
  absl::Notification answered;
  std::thread waiting([&] {
    const absl::Time begin = absl::Now();
    while (!answered.WaitForNotificationWithTimeout(kSayEvery)) {
      context.err << request.spec().name() << ": a worker has been looking at the data for "
                  << absl::ToInt64Seconds(absl::Now() - begin) << " s\n"
                  << std::flush;
    }
  });
  absl::StatusOr<SubmitReply> reply = client.Submit(request);
  answered.Notify();
  waiting.join();
  return reply;
}

}  // namespace

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
  const auto reply = Submit(request, **client, context);
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
