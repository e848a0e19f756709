// starling wait, set, cancel, delete: what happens to jobs.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/config/duration.h"
#include "common/protocol/limits.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/verbs.h"
#include "tools/cli/watch.h"

namespace starling::cli {
namespace {

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

// Shards have parameters of a job that ran to its end. One that waited to go on has what is in a
// checkpoint.
std::string WhatStays(const JobReply& job) {
  const JobStatus& status = job.status();
  if (job.views_size() > 0)
    return absl::StrCat("; its last parameters stay until: starling delete ", status.name());
  const std::string& checkpoint =
      status.checkpoint().has_last() ? status.checkpoint().last().id() : status.restored_from();
  if (!checkpoint.empty()) {
    return absl::StrCat("; no shard has parameters of it, as it waited: those of checkpoint ",
                        checkpoint, " stay; go on from there with: starling submit --from ",
                        checkpoint);
  }
  return status.restarts() > 0 || status.running_seconds() > 0 ? "; its parameters are gone"
                                                               : "; it had not begun";
}

absl::StatusOr<int> RunCancel(const std::string& name, Client& client, Context& context) {
  STARLING_RETURN_IF_ERROR(client.CancelJob(name));
  const absl::StatusOr<JobReply> job = client.GetJob(name);
  context.err << "cancelled " << name << (job.ok() ? WhatStays(*job) : "") << "\n";
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
    return status.ok();
  };
  for (const std::string& name : options.names) {
    if (!remove(name, "")) continue;
    const auto checkpoints = client.ListCheckpoints(name);
    if (!checkpoints.ok() || checkpoints->checkpoints().empty()) continue;
    context.err << "its checkpoints stay: starling checkpoint list " << name << "\n";
  }
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
  const auto [wait, waiting] = line.Verb<WaitOptions>(
      "wait", "follow a job to its end, and until its output file is there", RunWait);
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
