#include "common/daemon/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/transport/transport.h"
#include "common/version/version.h"

namespace starling {
namespace {

constexpr absl::string_view kLevels[] = {"debug", "info", "warn", "error"};

std::string ProgramOf(PeerRole role) {
  switch (role) {
    case PeerRole::kShard: return "starling-ps";
    case PeerRole::kWorker: return "starling-worker";
    case PeerRole::kCoordinator: return "starling-coordinator";
    case PeerRole::kClient: return "starling";
  }
  return "starling";
}

}  // namespace

std::optional<int> ParseDaemonFlags(int argc, const char* const* argv, PeerRole role,
                                    const std::vector<ExtraFlag>& extra, DaemonFlags* flags) {
  const std::string program = ProgramOf(role);
  CLI::App app(absl::StrCat("Starling's ", PeerRoleName(role), "."), program);
  app.set_version_flag("--version", absl::StrCat(program, " ", std::string(ReleaseVersion()), " (protocol ",
                                                 ProtocolVersion(), ")"));
  const bool is_coordinator = role == PeerRole::kCoordinator;
  if (is_coordinator) flags->name = "coordinator";
  CLI::Option* name = app.add_option("--name", flags->name,
                                     "Name of this process slot; the same after a restart");
  if (!is_coordinator) {
    name->required();
    app.add_option("--coordinator", flags->coordinator, "The coordinator's host:port")->required();
  }
  app.add_option("--listen", flags->listen, "host:port to listen on; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--port-file", flags->port_file, "Write the port that is listened on here");
  app.add_option("--admin-address", flags->admin_address,
                 "host:port for /metrics, /healthz and /readyz, plain HTTP that anybody who reaches it can "
                 "read; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--admin-port-file", flags->admin_port_file, "Write the admin port here");
  app.add_option("--log-level", flags->log_level, "debug, info, warn or error")->capture_default_str();
  std::string clock_offset;
  app.add_option("--inject-clock-offset", clock_offset,
                 "For tests: say that its clocks are ahead by so much, as 0.7s or -200ms");
  for (const ExtraFlag& flag : extra) {
    app.add_option(flag.flag, *flag.value, flag.help)->required(flag.required)->capture_default_str();
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  absl::Status status = CheckName("--name", flags->name);
  if (status.ok()) status = CheckListenAddress(flags->listen);
  if (status.ok() && !clock_offset.empty() &&
      !(absl::ParseDuration(clock_offset, &flags->clock_offset) &&
        absl::AbsDuration(flags->clock_offset) <= absl::Hours(1))) {
    status = absl::InvalidArgumentError(
        absl::StrCat("--inject-clock-offset: expected at most an hour, as 0.7s or -200ms, got \"", clock_offset, "\""));
  }
  if (status.ok() && std::find(std::begin(kLevels), std::end(kLevels), flags->log_level) ==
                         std::end(kLevels)) {
    status = absl::InvalidArgumentError(
        absl::StrCat("--log-level must be debug, info, warn or error, not ", flags->log_level));
  }
  if (status.ok()) return std::nullopt;
  std::cerr << program << ": " << std::string(status.message()) << std::endl;
  return kExitUsage;
}

absl::Status SetUpLogging(PeerRole role, const std::string& name, const std::string& level) {
  if (std::find(std::begin(kLevels), std::end(kLevels), level) == std::end(kLevels)) {
    return absl::InvalidArgumentError(
        absl::StrCat("log level must be debug, info, warn or error, not ", level));
  }
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  auto logger = std::make_shared<spdlog::logger>(
      "starling", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  const std::string who =
      role == PeerRole::kCoordinator ? name : absl::StrCat(PeerRoleName(role), " ", name);
  logger->set_pattern(absl::StrCat("%Y-%m-%dT%H:%M:%S.%eZ %-5l ", who, ": %v"),
                      spdlog::pattern_time_type::utc);
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

absl::Status WritePortFile(const std::string& path, int port) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << port << "\n";
    out.close();
    if (!out) {
      return absl::UnavailableError(
          absl::StrCat("cannot write the port file ", temporary, ": ", std::strerror(errno)));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    return absl::UnavailableError(
        absl::StrCat("cannot write the port file ", path, ": ", std::strerror(error)));
  }
  return absl::OkStatus();
}

std::string NoCoordinator(absl::string_view address, absl::Time since, absl::Time now,
                          const absl::Status& last_error) {
  return absl::StrCat("no coordinator at ", address, " for ",
                      absl::FormatDuration(absl::Trunc(now - since, absl::Milliseconds(100))),
                      " (since ", absl::FormatTime("%H:%M:%S", since, absl::UTCTimeZone()),
                      " UTC); last error: ", last_error.ToString(),
                      "; start one with: starling-coordinator --listen ", address, " --state DIR");
}

DaemonExit::DaemonExit() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  request_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

DaemonExit::~DaemonExit() {
  close(signal_fd_);
  close(request_fd_);
}

DaemonExit::Reason DaemonExit::Wait() { return *WaitUntil(absl::InfiniteFuture()); }

std::optional<DaemonExit::Reason> DaemonExit::WaitUntil(absl::Time deadline) {
  for (;;) {
    pollfd fds[] = {{signal_fd_, POLLIN, 0}, {request_fd_, POLLIN, 0}};
    int timeout = -1;
    if (deadline != absl::InfiniteFuture()) {
      const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now()) + 1;
      timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
    }
    const int ready = poll(fds, 2, timeout);
    if (ready == 0) return std::nullopt;
    uint64_t count = 0;
    if ((fds[1].revents & POLLIN) != 0 && read(request_fd_, &count, sizeof(count)) > 0) {
      return Reason{0, exit_status_};
    }
    signalfd_siginfo info;
    if ((fds[0].revents & POLLIN) != 0 && read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      return Reason{static_cast<int>(info.ssi_signo), kExitOk};
    }
  }
}

void DaemonExit::Request(int exit_status) {
  int unset = -1;
  exit_status_.compare_exchange_strong(unset, exit_status);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(request_fd_, &one, sizeof(one));
}

}  // namespace starling
