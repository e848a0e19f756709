// A fake daemon for the supervisor's tests: takes the daemons' flags, writes its address, and waits
// for SIGTERM. $FAKE_DAEMON_FAILS names one that exits at once, $FAKE_DAEMON_STUBBORN one that
// ignores SIGTERM. $FAKE_DAEMON_FAILS_TWICE names a file: the first two that start exit at once.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

namespace {

bool Named(const char* variable, const std::string& name) {
  const char* value = std::getenv(variable);
  return value != nullptr && name == value;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int i = 1; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  const std::string name = flags["--name"];
  if (Named("FAKE_DAEMON_FAILS", name)) {
    std::fprintf(stderr, "%s cannot: the port is in use\n", name.c_str());
    return 3;
  }
  if (const char* path = std::getenv("FAKE_DAEMON_FAILS_TWICE")) {
    std::string marks;
    std::ifstream(path) >> marks;
    if (marks.size() < 2) {
      std::ofstream(path) << marks << "x";
      return 3;
    }
  }
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  const std::string admin_port =
      flags["--admin-address"].substr(flags["--admin-address"].rfind(':') + 1);
  std::ofstream(flags["--admin-port-file"])
      << (admin_port == "0" ? std::to_string(getpid()) : admin_port) << "\n";
  const std::string listen = flags["--listen"];
  const bool any_port = listen.size() > 2 && listen.compare(listen.size() - 2, 2, ":0") == 0;
  std::ofstream(flags["--port-file"])
      << (any_port ? "127.0.0.1:" + std::to_string(getpid()) : listen) << "\n";
  if (Named("FAKE_DAEMON_STUBBORN", name)) {
    for (;;) pause();
  }
  int signal = 0;
  sigwait(&set, &signal);
  if (const char* log = std::getenv("FAKE_DAEMON_LOG"))
    std::ofstream(log, std::ios::app) << name << "\n";
  return 0;
}
