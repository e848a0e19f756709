// The client: starling VERB ...
#include "tools/cli/client_main.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <random>

#include "common/base/clock.h"
#include "common/daemon/node.h"
#include "common/daemon/settings.h"
#include "tools/cli/app.h"
#include "tools/cli/grpc_client.h"

namespace {

// A pipe to which Ctrl-C writes, which wakes a sleeping verb.
int interrupt_pipe[2] = {-1, -1};

void OnInterrupt(int) {
  const char byte = 0;
  [[maybe_unused]] const auto written = write(interrupt_pipe[1], &byte, 1);
}

void CatchInterrupts() {
  if (interrupt_pipe[0] >= 0 || pipe(interrupt_pipe) != 0) return;
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool Sleep(absl::Duration duration) {
  if (interrupt_pipe[0] < 0) {
    absl::SleepFor(duration);
    return true;
  }
  const absl::Time end = starling::MonotonicNow() + duration;
  for (;;) {
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(interrupt_pipe[0], &readable);
    timeval left = absl::ToTimeval(std::max(absl::ZeroDuration(), end - starling::MonotonicNow()));
    const int ready = select(interrupt_pipe[0] + 1, &readable, nullptr, nullptr, &left);
    if (ready > 0) return false;
    if (ready == 0) return true;
  }
}

int TerminalColumns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string ExecutableDirectory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

}  // namespace

int starling::cli::ClientMain(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // what it has to say, the answers say
  starling::cli::Context context{.out = std::cout, .err = std::cerr};
  context.terminal = isatty(STDERR_FILENO) == 1;
  context.columns = TerminalColumns();
  context.executable_directory = ExecutableDirectory();
  context.environment = starling::ProcessEnvironment();
  context.now = [] { return starling::MonotonicNow(); };
  context.random = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  };
  context.catch_interrupts = CatchInterrupts;
  context.sleep = Sleep;
  context.environment_names = starling::EnvironmentNames();
  context.connect = [&context](const std::string& address) {
    return starling::cli::MakeGrpcClient({.address = address, .security = context.security});
  };
  context.steady_micros = [] {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  context.daemons = [&context] { return starling::cli::MakeGrpcDaemons(context.security); };
  context.describe_node = starling::DescribeNode;
  context.read_slices = [&context](const auto& job, const auto& layout, const auto& point,
                                   absl::Time deadline, const auto& consume) {
    const auto streams =
        starling::MakeStreamClient({starling::PeerRole::kClient, "cli"}, context.security);
    return starling::ReadSlices(*streams, job, layout, point, deadline, consume);
  };
  const int code = starling::cli::RunApp(std::vector<std::string>(argv + 1, argv + argc), context);
  errno = 0;
  std::cout.flush();
  if (std::cout.good() || code != 0) return code;
  std::cerr << "starling: cannot write to standard output"
            << (errno == 0 ? "" : std::string(": ") + std::strerror(errno)) << "\n";
  return 1;
}
