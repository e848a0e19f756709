// starling submit, and starling checkpoint restore: jobs that begin, or go on from a checkpoint.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/read_job_file.h"
#include "tools/cli/say_while.h"
#include "tools/cli/verbs.h"
#include "tools/cli/watch.h"

namespace starling::cli {
namespace {

struct SubmitOptions {
  std::string file;
  std::vector<std::string> overrides;  // --set
  std::string name;                    // --name: replaces metadata.name
  std::string from;                    // a checkpoint, or a job: its newest
  bool optimizer_state = false;        // with `from` and `file`
  int workers_min = 0;                 // with `from` and no `file`; 0: as before
  int workers_max = 0;
  bool replace = false;  // deletes an ended job of that name
  bool watch = false;
  bool dry_run = false;
};

void CheckSubmit(const SubmitOptions& options) {
  if (options.file.empty() && options.from.empty()) throw CLI::RequiredError("--file or --from");
  if (!options.file.empty() && (options.workers_min > 0 || options.workers_max > 0)) {
    throw CLI::ValidationError("--workers-min, --workers-max",
                               "expected no job file: it has workers.min and workers.max");
  }
  if (!options.file.empty()) return;
  if (!options.overrides.empty())
    throw CLI::ValidationError("--set", "expected a job file (--file), whose values it replaces");
  if (options.optimizer_state) {
    throw CLI::ValidationError("--optimizer-state",
                               "expected a job file (--file): a job that goes on has it anyway");
  }
}

absl::StatusOr<SubmitRequest> MakeRequest(const SubmitOptions& options, Context& context) {
  SubmitRequest request;
  request.set_from(options.from);
  request.set_optimizer_state(options.optimizer_state);
  request.set_dry_run(options.dry_run);
  request.set_nonce(context.random());
  if (options.file.empty()) {
    request.set_name(options.name);
    request.set_workers_min(static_cast<uint32_t>(options.workers_min));
    request.set_workers_max(static_cast<uint32_t>(options.workers_max));
    return request;
  }
  std::vector<std::string> overrides = options.overrides;
  if (!options.name.empty()) overrides.push_back(absl::StrCat("metadata.name=", options.name));
  STARLING_ASSIGN_OR_RETURN(*request.mutable_spec(),
                            ReadJobFile(options.file, overrides, context.environment));
  STARLING_RETURN_IF_ERROR(ReadInitFile(request.mutable_spec()));
  return request;
}

// A worker inspects the data first, which takes minutes for large data.
absl::StatusOr<SubmitReply> Submit(const SubmitRequest& request, Client& client, Context& context) {
  const std::string& name = request.has_spec() ? request.spec().name() : request.from();
  return SayWhile(absl::StrCat(name, ": a worker has been looking at the data"), context,
                  [&] { return client.Submit(request); });
}

// Deletes the ended job of that name, if there is one. A dry run checks the new job first, so that
// a submission that would be refused does not cost the old job's parameters.
absl::Status MakePlace(const SubmitRequest& submission, Client& client, Context& context) {
  SubmitRequest check = submission;
  check.set_dry_run(true);
  std::string name = submission.has_spec() ? submission.spec().name() : submission.name();
  const bool unknown = name.empty();  // that of the checkpoint
  if (unknown) {
    STARLING_ASSIGN_OR_RETURN(const SubmitReply reply, Submit(check, client, context));
    name = reply.status().name();
  }
  const auto there = client.GetJob(name);
  if (absl::IsNotFound(there.status())) return absl::OkStatus();
  if (!there.ok()) return there.status();
  if (!IsEnd(there->status().state())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " is ", JobState_Name(there->status().state()),
        ", and --replace replaces one that is over: cancel it first (starling cancel ", name, ")"));
  }
  if (!unknown) STARLING_RETURN_IF_ERROR(Submit(check, client, context).status());
  const absl::Status deleted = client.DeleteJob(name);
  if (absl::IsNotFound(deleted)) return absl::OkStatus();  // another client deleted it first
  if (!deleted.ok()) return deleted;
  context.err << "deleted " << name << " (" << JobState_Name(there->status().state()) << ")\n";
  return absl::OkStatus();
}

absl::StatusOr<int> RunSubmit(const SubmitOptions& options, const CommandLine& line,
                              Context& context) {
  STARLING_ASSIGN_OR_RETURN(const SubmitRequest request, MakeRequest(options, context));
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, line.Connect(context));
  if (options.replace && !options.dry_run) {
    STARLING_RETURN_IF_ERROR(MakePlace(request, *client, context));
  }
  STARLING_ASSIGN_OR_RETURN(const SubmitReply reply, Submit(request, *client, context));
  const std::string name = request.has_spec() ? request.spec().name() : reply.status().name();
  const bool goes_on = !request.has_spec();
  context.err << WarningsText(reply.status().warnings());
  if (options.dry_run) {
    context.out << name << ": valid, not submitted (" << CountText(reply.status().parameters())
                << " parameters)\n";
    return kExitOk;
  }
  context.err << "submitted " << name;
  if (goes_on) {
    context.err << ", which goes on from checkpoint " << reply.status().restored_from() << ", step "
                << CountText(reply.status().step());
  } else if (!options.from.empty()) {
    context.err << ", with the values of checkpoint " << reply.status().restored_from();
  }
  context.err << "\n" << std::flush;
  if (!options.watch) return kExitOk;
  context.catch_interrupts();
  return WatchJob(name, absl::InfiniteFuture(), *client, context);
}

void AddCommon(CLI::App* verb, SubmitOptions* options) {
  const CLI::Range range(0, static_cast<int>(limits::kWorkersPerJobMax));
  AddNumber(verb, "--workers-min", &options->workers_min, range,
            "of a job that goes on: waits for so many; 0: as before");
  AddNumber(verb, "--workers-max", &options->workers_max, range,
            "of a job that goes on: takes so many; 0: as before");
  verb->add_flag("--replace", options->replace,
                 "in place of a job of that name that has ended, which is deleted");
  verb->add_flag("--watch", options->watch, "follow the job to its end");
  verb->add_flag("--dry-run", options->dry_run, "check it, and its data, only");
}

}  // namespace

void AddSubmit(CommandLine& line) {
  const auto [submit, job] = line.Verb<SubmitOptions>("submit",
                                                      "submit a job file, or go on from "
                                                      "a checkpoint",
                                                      RunSubmit, nullptr, CheckSubmit);
  AddJobFile(submit, "the job file (see: starling schema); -: standard input", &job->file,
             &job->overrides)
      ->required(false);
  submit->add_option("--name", job->name, "the job's name, in place of the file's");
  submit
      ->add_option("--from", job->from,
                   "a checkpoint, or a job, for its newest: without a file, that job goes on; with "
                   "one, the file's job begins with those values")
      ->check(CheckUtf8);
  submit->add_flag("--optimizer-state", job->optimizer_state,
                   "with --from and a file: with the optimizer's state, too");
  AddCommon(submit, job);
}

void AddRestore(CommandLine& line, CLI::App* group) {
  const auto [restore, job] = line.Verb<SubmitOptions>(
      "restore", "submit a job that goes on from one (as starling submit --from)", RunSubmit,
      group);
  restore->add_option("ID", job->from, "the checkpoint, or a job, for its newest")
      ->required()
      ->check(CheckUtf8);
  restore->add_option("--name", job->name, "the job's name, in place of the old one's");
  AddCommon(restore, job);
}

}  // namespace starling::cli
