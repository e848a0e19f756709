// starling explain: why a job is slow or stuck. starling logs: the coordinator's notes about it.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

// "compute 92 %, wait 5 %, ... of each step's 0.301 s"
std::string PhasesText(const ExplainReply& reply) {
  double step = 0;
  std::vector<std::string> shares;
  for (const PhaseShare& phase : reply.phases()) {
    step += phase.seconds();
    shares.push_back(absl::StrFormat("%s %.0f %%", phase.phase(), 100 * phase.share()));
  }
  return absl::StrFormat("%s of each step's %.3g s", absl::StrJoin(shares, ", "), step);
}

std::string Text(const ExplainReply& reply) {
  const JobStatus& status = reply.status();
  std::string text;
  if (reply.findings().empty()) {
    absl::StrAppend(&text, "nothing wrong: ", status.name(), " is ", JobState_Name(status.state()));
    const bool early = status.state() == RUNNING && reply.phases().empty();
    absl::StrAppend(&text, early ? "; it is too early to say where its time goes\n" : "\n");
  }
  for (const Finding& finding : reply.findings()) {
    absl::StrAppend(&text, finding.cause(), ": ", PrintableText(finding.text()),
                    ".\n  try: ", PrintableText(finding.remedy()), "\n");
  }
  if (!reply.phases().empty())
    absl::StrAppend(&text, "where the time goes: ", PhasesText(reply), "\n");
  return text;
}

struct ExplainOptions {
  std::string name;
  Format format = Format::kTable;
  bool follow = false;  // logs
};

absl::StatusOr<int> RunExplain(const ExplainOptions& options, Client& client, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const ExplainReply reply, client.Explain(options.name));
  context.out << (options.format == Format::kTable ? Text(reply)
                                                   : FormatText(options.format, ToJson(reply)));
  return reply.findings().empty() ? kExitOk : kExitError;
}

absl::StatusOr<int> RunLogs(const ExplainOptions& options, Client& client, Context& context) {
  constexpr double kFollowSeconds = 5;  // the coordinator holds the answer until there is news
  LogsRequest request;
  request.set_name(options.name);
  for (;;) {
    STARLING_ASSIGN_OR_RETURN(const LogsReply reply, client.Logs(request));
    for (const LogEntry& entry : reply.entries()) {
      context.out << entry.time() << "  " << PrintableText(entry.text()) << "\n";
      request.set_after(entry.number());
    }
    context.out << std::flush;
    const bool all = reply.entries().empty();
    if (all && (!options.follow || IsEnd(reply.state()))) return kExitOk;
    request.set_wait_seconds(options.follow && !IsEnd(reply.state()) ? kFollowSeconds : 0);
  }
}

}  // namespace

void AddExplain(CommandLine& line) {
  const auto [explain, options] = line.Verb<ExplainOptions>(
      "explain", "why a job is slow or stuck (exit status 1: something is wrong)", RunExplain);
  AddName(explain, "the job", &options->name);
  AddFormat(explain, &options->format);
  const auto [logs, log_options] =
      line.Verb<ExplainOptions>("logs", "what the coordinator noted about a job", RunLogs);
  AddName(logs, "the job", &log_options->name);
  logs->add_flag("-f,--follow", log_options->follow, "until the job has ended");
}

}  // namespace starling::cli
