// starling cancel, starling delete.
#include "absl/strings/str_cat.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/verbs.h"

namespace starling::cli {

int RunCancel(const std::string& name, Client& client, Context& context) {
  const absl::Status status = client.CancelJob(name);
  if (!status.ok()) return Fail(status, context);
  context.err << "cancelled " << name << "; its last parameters stay until: starling delete "
              << name << "\n";
  return kExitOk;
}

int RunDelete(const std::vector<std::string>& names, bool ended, Client& client, Context& context) {
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
  for (const std::string& name : names) remove(name, "");
  if (!ended) return exit_code;
  ListJobsRequest request;
  for (const JobState state : {SUCCEEDED, FAILED, CANCELLED}) request.add_states(state);
  do {
    const auto page = client.ListJobs(request);
    if (!page.ok()) return Fail(page.status(), context);
    for (const JobStatus& job : page->jobs())
      remove(job.name(), absl::StrCat(" (", JobState_Name(job.state()), ")"));
    request.mutable_page()->set_after(page->next());
  } while (!request.page().after().empty());
  context.err << deleted << (deleted == 1 ? " job" : " jobs")
              << " deleted, with their parameters\n";
  return exit_code;
}

}  // namespace starling::cli
