// starling explain: why a job is slow or stuck.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
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
    absl::StrAppend(&text, finding.cause(), ": ", finding.text(), ".\n  try: ", finding.remedy(),
                    "\n");
  }
  if (!reply.phases().empty())
    absl::StrAppend(&text, "where the time goes: ", PhasesText(reply), "\n");
  return text;
}

}  // namespace

int RunExplain(const std::string& name, Format format, Client& client, Context& context) {
  const auto reply = client.Explain(name);
  if (!reply.ok()) return Fail(reply.status(), context);
  if (format == Format::kTable) {
    context.out << Text(*reply);
  } else {
    const nlohmann::ordered_json json = ToJson(*reply);
    context.out << (format == Format::kJson ? JsonText(json) : YamlText(json));
  }
  return reply->findings().empty() ? kExitOk : kExitError;
}

}  // namespace starling::cli
