#include "tools/local/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/owned_fd.h"

namespace starling::local {
namespace {

sigset_t HeldSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

// Variables that users set for their client, or for other clusters, must not reach this cluster's
// daemons, whose flags give their names, addresses and settings.
std::vector<char*> DaemonEnvironment() {
  constexpr absl::string_view kNotTheirs[] = {"STARLING_ADVERTISE_ADDRESS=",
                                              "STARLING_CLUSTER=",
                                              "STARLING_INSECURE=",
                                              "STARLING_NAME=",
                                              "STARLING_TLS_CA=",
                                              "STARLING_TLS_CERT=",
                                              "STARLING_TLS_KEY="};
  std::vector<char*> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const auto begins = [&](absl::string_view name) { return absl::StartsWith(*entry, name); };
    if (std::none_of(std::begin(kNotTheirs), std::end(kNotTheirs), begins)) kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  return kept;
}

// In the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void RunChild(char** argv, char** environment, int input, int log, pid_t parent,
                           int error_pipe) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it ended before the prctl
  dup2(input, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execve(argv[0], argv, environment);
  const int error = errno;
  [[maybe_unused]] const auto written = write(error_pipe, &error, sizeof error);
  _exit(127);
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv, const std::string& log_path,
                            const std::string& input_path) {
  std::vector<char*> raw;
  for (const std::string& arg : argv) raw.push_back(const_cast<char*>(arg.c_str()));
  raw.push_back(nullptr);
  const OwnedFd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.open()) return SystemError("open", log_path);
  const OwnedFd input(open(input_path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!input.open()) return SystemError("open", input_path);
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) return SystemError("make", "a pipe");
  const OwnedFd error_in(error_pipe[0]);
  OwnedFd error_out(error_pipe[1]);
  std::vector<char*> environment = DaemonEnvironment();
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    RunChild(raw.data(), environment.data(), input.get(), log.get(), parent, error_out.get());
  }
  int error = pid < 0 ? errno : 0;
  error_out.Reset();
  if (pid > 0 && read(error_in.get(), &error, sizeof error) > 0) waitpid(pid, nullptr, 0);
  if (error == 0) return pid;
  errno = error;
  return SystemError("start", argv[0]);
}

std::string ExitText(int wait_status) {
  if (WIFSIGNALED(wait_status)) return absl::StrCat("was killed by signal ", WTERMSIG(wait_status));
  return absl::StrCat("exited with status ", WEXITSTATUS(wait_status));
}

void HoldSignals() {
  const sigset_t set = HeldSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

absl::optional<int> TakeSignal(absl::Duration patience) {
  const sigset_t set = HeldSignals();
  const timespec timeout = absl::ToTimespec(std::max(patience, absl::ZeroDuration()));
  const int signal = sigtimedwait(&set, nullptr, &timeout);
  return signal > 0 ? absl::optional<int>(signal) : absl::nullopt;
}

}  // namespace starling::local
