#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "tools/bundle/check_parts.h"
#include "tools/local/process.h"
#include "tools/local/state_directory.h"

namespace starling::bundle {

Outcome OutcomeOf(const absl::StatusOr<std::string>& text) {
  if (text.ok()) return {Outcome::kPassed, *text};
  return {Outcome::kFailed, std::string(text.status().message())};
}

void Print(const Figure& figure) {
  std::string line = absl::StrCat("figure ", figure.name);
  for (const auto& [key, value] : figure.values) absl::StrAppend(&line, " ", key, "=", value);
  std::printf("%s\n", line.c_str());
}

std::string LogPath(const Site& site, const std::string& name) {
  return absl::StrCat(site.folder, "/", name, ".log");
}

std::string ReadFile(const std::string& path) { return ReadText(path).value_or(""); }

absl::StatusOr<pid_t> StartProgram(const Site& site, const std::string& log,
                                   const std::vector<std::string>& argv, const std::string& input) {
  return local::Spawn(argv, LogPath(site, log), input);
}

absl::StatusOr<pid_t> Start(const Site& site, const std::string& log,
                            std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), site.program);
  return StartProgram(site, log, arguments);
}

absl::StatusOr<int> WaitFor(pid_t pid, absl::Time deadline) {
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) return status;
    if (ended < 0) return absl::InternalError(absl::StrCat("waitpid: ", std::strerror(errno)));
    if (absl::Now() >= deadline) {
      kill(-pid, SIGKILL);
      waitpid(pid, &status, 0);
      return absl::DeadlineExceededError("not done in time, and killed");
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
}

absl::StatusOr<std::string> Run(const Site& site, const std::string& log,
                                const std::vector<std::string>& arguments) {
  STARLING_ASSIGN_OR_RETURN(const pid_t pid, Start(site, log, arguments));
  const absl::StatusOr<int> status = WaitFor(pid, site.deadline);
  if (status.ok() && *status == 0) return ReadFile(LogPath(site, log));
  const std::string why =
      status.ok() ? local::ExitText(*status) : std::string(status.status().message());
  return WithLastWords(site, log, absl::StrCat(log, " ", why));
}

absl::Status WithLastWords(const Site& site, const std::string& log, const std::string& text) {
  return absl::InternalError(
      absl::StrCat(text, "; its last words:\n", local::LastLines(LogPath(site, log), 8)));
}

}  // namespace starling::bundle
