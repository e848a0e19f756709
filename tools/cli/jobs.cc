// starling submit, wait, set, cancel, delete: what happens to jobs.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/config/duration.h"
#include "common/protocol/limits.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/read_job_file.h"
#include "tools/cli/verbs.h"
#include "tools/cli/watch.h"

namespace starling::cli {
namespace {

struct SubmitOptions {
  std::string file;
  std::vector<std::string> overrides;  // --set
  std::string name;                    // --name: replaces metadata.name
  bool replace = false;                // deletes an ended job of that name
  bool watch = false;
  bool dry_run = false;
};

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

absl::StatusOr<Policy> ParsePolicy(absl::string_view text) {
  Policy policy;
  uint32_t staleness = 0;
  if (text == "bsp") {
    policy.set_kind(Policy::BSP);
  } else if (text == "async") {
    policy.set_kind(Policy::ASYNC);
  } else if (absl::StartsWith(text, "ssp:") && absl::SimpleAtoi(text.substr(4), &staleness) &&
             staleness <= limits::kStalenessMax) {
    policy.set_kind(Policy::SSP);
    policy.set_staleness(staleness);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("consistency: expected bsp, ssp:0 to ssp:", limits::kStalenessMax,
                     " or async, got \"", text, "\""));
  }
  return policy;
}

absl::StatusOr<int> RunSubmit(const SubmitOptions& options, const CommandLine& line,
                              Context& context) {
  std::vector<std::string> overrides = options.overrides;
  if (!options.name.empty()) overrides.push_back(absl::StrCat("metadata.name=", options.name));
  SubmitRequest request;
  STARLING_ASSIGN_OR_RETURN(*request.mutable_spec(),
                            ReadJobFile(options.file, overrides, context.environment));
  STARLING_RETURN_IF_ERROR(ReadInitFile(request.mutable_spec()));
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, line.Connect(context));
  request.set_dry_run(options.dry_run);
  request.set_nonce(context.random());
  if (options.replace && !options.dry_run) {
    STARLING_RETURN_IF_ERROR(MakePlace(request, *client, context));
  }
  STARLING_ASSIGN_OR_RETURN(const SubmitReply reply, Submit(request, *client, context));
  const std::string& name = request.spec().name();
  context.err << WarningsText(reply.status().warnings());
  if (options.dry_run) {
    context.out << name << ": valid, not submitted (" << CountText(reply.status().parameters())
                << " parameters)\n";
    return kExitOk;
  }
  context.err << "submitted " << name << "\n" << std::flush;
  if (!options.watch) return kExitOk;
  context.catch_interrupts();
  return WatchJob(name, absl::InfiniteFuture(), *client, context);
}

struct WaitOptions {
  std::string name;
  std::string timeout;  // empty: none
};

absl::StatusOr<int> RunWait(const WaitOptions& options, Client& client, Context& context) {
  context.catch_interrupts();
  const absl::Duration timeout = options.timeout.empty()
                                     ? absl::InfiniteDuration()
                                     : absl::Seconds(*config::ParseDuration(options.timeout));
  return WatchJob(options.name, context.now() + timeout, client, context);
}

struct SetOptions {
  std::string name;
  std::string setting;
};

// Returns when the change is durable; it takes effect at a clock that no worker has started.
absl::StatusOr<int> RunSet(const SetOptions& options, Client& client, Context& context) {
  const std::string& name = options.name;
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(options.setting, absl::MaxSplits('=', 1));
  if (parts.first != "consistency") {
    return absl::InvalidArgumentError(
        absl::StrCat("expected consistency=bsp, consistency=ssp:3 or consistency=async, got \"",
                     options.setting, "\""));
  }
  SetPolicyRequest request;
  STARLING_ASSIGN_OR_RETURN(*request.mutable_policy(), ParsePolicy(parts.second));
  request.set_name(name);
  request.set_nonce(context.random());
  STARLING_ASSIGN_OR_RETURN(const SetPolicyReply reply, client.SetPolicy(request));
  for (const PolicyRecord& record : reply.status().policies()) {
    if (record.number() != reply.number()) continue;
    context.err
        << name << ": policy " << record.number() << ", " << PolicyText(record.policy())
        << (record.in_force()
                ? ", is in force\n"
                : absl::StrCat(
                      ", takes effect as soon as its clock is decided; see: starling describe job ",
                      name, "\n"));
  }
  return kExitOk;
}

absl::StatusOr<int> RunCancel(const std::string& name, Client& client, Context& context) {
  STARLING_RETURN_IF_ERROR(client.CancelJob(name));
  context.err << "cancelled " << name << "; its last parameters stay until: starling delete "
              << name << "\n";
  return kExitOk;
}

struct DeleteOptions {
  std::vector<std::string> names;
  bool ended = false;  // all ended jobs, instead of `names`
};

// Continues after a job that cannot be deleted, and returns the first failure's exit code.
absl::StatusOr<int> RunDelete(const DeleteOptions& options, Client& client, Context& context) {
  int exit_code = kExitOk;
  size_t deleted = 0;
  const auto remove = [&](const std::string& name, const std::string& what) {
    const absl::Status status = client.DeleteJob(name);
    if (status.ok()) {
      ++deleted;
      context.err << "deleted " << name << what << "\n";
    } else if (const int code = Fail(status, context); exit_code == kExitOk) {
      exit_code = code;
    }
  };
  for (const std::string& name : options.names) remove(name, "");
  if (!options.ended) return exit_code;
  ListJobsRequest request;
  for (const JobState state : {SUCCEEDED, FAILED, CANCELLED}) request.add_states(state);
  do {
    STARLING_ASSIGN_OR_RETURN(const ListJobsReply page, client.ListJobs(request));
    for (const JobStatus& job : page.jobs())
      remove(job.name(), absl::StrCat(" (", JobState_Name(job.state()), ")"));
    request.mutable_page()->set_after(page.next());
  } while (!request.page().after().empty());
  context.err << deleted << (deleted == 1 ? " job" : " jobs")
              << " deleted, with their parameters\n";
  return exit_code;
}

}  // namespace

void AddJobs(CommandLine& line) {
  const auto [submit, job] = line.Verb<SubmitOptions>("submit", "submit a job file", RunSubmit);
  AddJobFile(submit, "the job file (see: starling schema); -: standard input", &job->file,
             &job->overrides);
  submit->add_option("--name", job->name, "the job's name, in place of the file's");
  submit->add_flag("--replace", job->replace,
                   "in place of a job of that name that has ended, which is deleted");
  submit->add_flag("--watch", job->watch, "follow the job to its end");
  submit->add_flag("--dry-run", job->dry_run, "check it, and its data, only");

  const auto [wait, waiting] = line.Verb<WaitOptions>("wait", "follow a job to its end", RunWait);
  AddName(wait, "the job", &waiting->name);
  wait->add_option("--timeout", waiting->timeout,
                   "at most so long: 90s, 30m, 2h (else without bound)")
      ->check([](const std::string& text) {
        return std::string(config::ParseDuration(text).status().message());
      });

  const auto [set, change] =
      line.Verb<SetOptions>("set", "change the consistency of a running job", RunSet);
  AddName(set, "the job", &change->name);
  set->add_option("SETTING", change->setting,
                  "consistency=bsp, consistency=ssp:3 or consistency=async")
      ->required();

  const auto [cancel, name] =
      line.Verb<std::string>("cancel", "stop a job; its last parameters stay", RunCancel);
  AddName(cancel, "the job", name);

  const auto [remove, removal] =
      line.Verb<DeleteOptions>("delete", "forget jobs that have ended, and their parameters",
                               RunDelete, nullptr, [](const DeleteOptions& options) {
                                 if (options.names.empty() && !options.ended)
                                   throw CLI::RequiredError("NAME or --ended");
                               });
  CLI::Option* ended = remove->add_flag("--ended", removal->ended, "all that have ended");
  remove->add_option("NAME", removal->names, "the jobs")->check(CheckUtf8)->excludes(ended);
}

}  // namespace starling::cli
