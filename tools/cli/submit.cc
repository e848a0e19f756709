// starling submit: sends a job file to the coordinator.
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/init_file.h"
#include "tools/cli/output.h"
#include "tools/cli/read_job_file.h"
#include "tools/cli/verbs.h"
#include "tools/cli/watch.h"

namespace starling::cli {
namespace {

constexpr absl::Duration kSayEvery = absl::Seconds(10);

// A worker inspects the data first, which takes minutes for large data.
absl::StatusOr<SubmitReply> Submit(const SubmitRequest& request, Client& client, Context& context) {
  absl::Notification answered;
  std::thread waiting([&] {
    const absl::Time begin = MonotonicNow();
    while (!answered.WaitForNotificationWithTimeout(kSayEvery)) {
      context.err << request.spec().name() << ": a worker has been looking at the data for "
                  << absl::ToInt64Seconds(MonotonicNow() - begin) << " s\n"
                  << std::flush;
    }
  });
  absl::StatusOr<SubmitReply> reply = client.Submit(request);
  answered.Notify();
  waiting.join();
  return reply;
}

// Deletes the ended job of that name, if there is one. A dry run checks the new job first, so that
// a submission that would be refused does not cost the old job's parameters.
absl::Status MakePlace(const SubmitRequest& submission, Client& client, Context& context) {
  const std::string& name = submission.spec().name();
  const auto there = client.GetJob(name);
  if (absl::IsNotFound(there.status())) return absl::OkStatus();
  if (!there.ok()) return there.status();
  if (!IsEnd(there->status().state())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " is ", JobState_Name(there->status().state()),
        ", and --replace replaces one that is over: cancel it first (starling cancel ", name, ")"));
  }
  SubmitRequest check = submission;
  check.set_dry_run(true);
  if (const auto reply = Submit(check, client, context); !reply.ok()) return reply.status();
  const absl::Status deleted = client.DeleteJob(name);
  if (absl::IsNotFound(deleted)) return absl::OkStatus();  // another client deleted it first
  if (!deleted.ok()) return deleted;
  context.err << "deleted " << name << " (" << JobState_Name(there->status().state()) << ")\n";
  return absl::OkStatus();
}

}  // namespace

int RunSubmit(const SubmitOptions& options, const Connector& connect, Context& context) {
  std::vector<std::string> overrides = options.overrides;
  if (!options.name.empty()) overrides.push_back(absl::StrCat("metadata.name=", options.name));
  auto spec = ReadJobFile(options.file, overrides, context.environment);
  if (!spec.ok()) return Fail(spec.status(), context);
  if (const absl::Status init = ReadInitFile(&*spec); !init.ok()) return Fail(init, context);
  const auto client = connect();
  if (!client.ok()) return Fail(client.status(), context);
  SubmitRequest request;
  *request.mutable_spec() = *std::move(spec);
  request.set_dry_run(options.dry_run);
  request.set_nonce(context.random());
  if (options.replace && !options.dry_run) {
    if (const absl::Status place = MakePlace(request, **client, context); !place.ok())
      return Fail(place, context);
  }
  const auto reply = Submit(request, **client, context);
  if (!reply.ok()) return Fail(reply.status(), context);
  const std::string& name = request.spec().name();
  context.err << WarningsText(reply->status().warnings());
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
