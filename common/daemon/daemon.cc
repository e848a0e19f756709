#include "common/daemon/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/daemon/usage.h"
#include "common/version/version.h"
#include "nlohmann/json.hpp"

namespace starling {
namespace {

constexpr absl::string_view kLevels[] = {"debug", "info", "warn", "error"};

// One JSON object per line: time, level, process, message.
class JsonFormatter : public spdlog::formatter {
 public:
  explicit JsonFormatter(std::string process) : process_(std::move(process)) {}
  void format(const spdlog::details::log_msg& entry, spdlog::memory_buf_t& out) override {
    const nlohmann::ordered_json line = {
        {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(entry.time),
                                  absl::UTCTimeZone())},
        {"level", std::string(kNames[entry.level])},
        {"process", process_},
        {"message", std::string(entry.payload.data(), entry.payload.size())}};
    const std::string text =
        line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(process_);
  }

 private:
  static constexpr absl::string_view kNames[] = {"trace", "debug",    "info", "warn",
                                                 "error", "critical", "off"};
  const std::string process_;
};

absl::Status CheckLogging(const std::string& level, const std::string& format) {
  if (std::find(std::begin(kLevels), std::end(kLevels), level) == std::end(kLevels)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-level must be debug, info, warn or error, not ", level));
  }
  if (format == "text" || format == "json") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--log-format must be text or json, not ", format));
}

std::string ProgramOf(PeerRole role) {
  if (role == PeerRole::kClient) return "starling";
  return absl::StrCat("starling-", role == PeerRole::kShard ? "ps" : PeerRoleName(role));
}

absl::Status CheckFlags(PeerRole role, const DaemonFlags& flags) {
  STARLING_RETURN_IF_ERROR(CheckName("--name", flags.name));
  STARLING_RETURN_IF_ERROR(CheckListenAddress(flags.listen, flags.security.get()));
  if (role != PeerRole::kCoordinator) {
    STARLING_RETURN_IF_ERROR(CheckPeerAddress(flags.coordinator, flags.security.get()));
  }
  STARLING_RETURN_IF_ERROR(AdvertisedAddress(flags.advertise_address, flags.listen).status());
  return CheckLogging(flags.log_level, flags.log_format);
}

absl::Status ReadClockOffset(const std::string& text, DaemonFlags* flags) {
  if (text.empty() || (absl::ParseDuration(text, &flags->clock_offset) &&
                       absl::AbsDuration(flags->clock_offset) <= absl::Hours(1))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--inject-clock-offset: expected at most an hour, as 0.7s or -200ms, got \"", text, "\""));
}

absl::Status TakeSettings(PeerRole role, const Settings& settings, DaemonFlags* flags) {
  STARLING_RETURN_IF_ERROR(CheckName("--cluster", flags->cluster));
  STARLING_ASSIGN_OR_RETURN(flags->security, MakeLinkSecurity(*flags, role));
  for (const std::string& variable : settings.Unknown(EnvironmentNames())) {
    flags->warnings.push_back(
        absl::StrCat(variable, " is set, and no setting has that name: --help lists them"));
  }
  if (flags->insecure) flags->warnings.emplace_back(kInsecureWarning);
  return CheckFlags(role, *flags);
}

}  // namespace

void AddLinkSettings(Settings& settings, DaemonFlags* flags) {
  settings.Add("--tls-cert", "PEM file: this process's certificate, and those up to the authority",
               &flags->tls_cert);
  settings.Add("--tls-key", "PEM file: its private key", &flags->tls_key);
  settings.Add("--tls-ca", "PEM file: the authorities that sign the cluster's certificates",
               &flags->tls_ca);
  settings.Add("--cluster", "The cluster that certificates must be of", &flags->cluster);
  settings.AddSwitch("--insecure", "Without TLS, use addresses beyond loopback all the same",
                     &flags->insecure);
}

absl::StatusOr<std::shared_ptr<const LinkSecurity>> MakeLinkSecurity(const DaemonFlags& flags,
                                                                     PeerRole role) {
  const int files = !flags.tls_cert.empty() + !flags.tls_key.empty() + !flags.tls_ca.empty();
  if (files != 0 && files != 3) {
    return absl::InvalidArgumentError(
        "--tls-cert, --tls-key and --tls-ca belong together: give all three, or none");
  }
  if (files == 0) return flags.insecure ? LinkSecurity::Insecure() : LinkSecurity::Loopback();
  if (flags.insecure) {
    return absl::InvalidArgumentError("--insecure contradicts --tls-cert: give one of them");
  }
  return LinkSecurity::Tls({flags.tls_cert, flags.tls_key, flags.tls_ca}, {flags.cluster, role});
}

absl::StatusOr<std::string> AdvertisedAddress(absl::string_view advertise,
                                              absl::string_view listening) {
  const absl::string_view from = advertise.empty() ? listening : advertise;
  // A colon inside [] belongs to the host.
  const size_t host_end = from.find(':', absl::StartsWith(from, "[") ? from.find(']') : 0);
  const absl::string_view host = from.substr(0, host_end);
  const bool has_port = host_end != absl::string_view::npos;
  absl::string_view port = has_port ? from.substr(host_end + 1) : "0";
  int number = 0;
  if (host.empty() || !absl::SimpleAtoi(port, &number) || number < 0 || number > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--advertise-address must be host or host:port, as 10.1.2.3:7071 or [fd00::1], not \"",
        advertise, "\""));
  }
  if (host == "0.0.0.0" || host == "[::]") {
    return absl::InvalidArgumentError(absl::StrCat(
        "nobody can connect to ", host, ": where --listen has it, --advertise-address must say at ",
        "which address this process is reached"));
  }
  if (number == 0) port = listening.substr(listening.rfind(':') + 1);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<absl::Duration> ParseDrainTimeout(const std::string& text) {
  absl::Duration timeout;
  if (absl::ParseDuration(text, &timeout) && timeout > absl::ZeroDuration() &&
      timeout <= absl::Hours(24)) {
    return timeout;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--drain-timeout: expected more than 0s and at most 24h, as 20s or 5m, got \"", text, "\""));
}

absl::StatusOr<bool> ParseSharedMemory(const std::string& text) {
  if (text == "auto" || text == "off") return text == "auto";
  return absl::InvalidArgumentError(
      absl::StrCat("--shared-memory: expected auto or off, got \"", text, "\""));
}

void RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::optional<int> ParseDaemonFlags(int argc, const char* const* argv, PeerRole role,
                                    const std::vector<ExtraFlag>& extra, DaemonFlags* flags,
                                    const Environment& environment) {
  const std::string program = ProgramOf(role);
  CLI::App app(absl::StrCat("Starling's ", PeerRoleName(role), "."), program);
  app.set_version_flag("--version", absl::StrCat(program, " ", std::string(ReleaseVersion()),
                                                 " (protocol ", ProtocolVersion(), ")"));
  const bool is_coordinator = role == PeerRole::kCoordinator;
  if (is_coordinator) flags->name = "coordinator";
  Settings settings(&app);
  settings.Add("--name", "Name of this process slot; the same after a restart", &flags->name,
               !is_coordinator);
  if (!is_coordinator) {
    settings.Add("--coordinator", "The coordinator's host:port", &flags->coordinator, true);
  }
  settings.Add("--listen", "host:port to listen on; port 0 takes a free one", &flags->listen);
  settings.Add("--advertise-address",
               "host or host:port at which others reach this process, if not at --listen",
               &flags->advertise_address);
  settings.Add("--port-file", "Write the port that is listened on here", &flags->port_file);
  settings.Add(
      "--admin-address",
      "host:port for /metrics, /healthz and /readyz, plain HTTP that anybody who reaches it can "
      "read; port 0 takes a free one",
      &flags->admin_address);
  settings.Add("--admin-port-file", "Write the admin port here", &flags->admin_port_file);
  AddLinkSettings(settings, flags);
  settings.Add("--log-level", "debug, info, warn or error", &flags->log_level);
  settings.Add("--log-format", "text, or json: an object a line", &flags->log_format);
  std::string clock_offset;
  settings.AddForTests("--inject-clock-offset",
                       "say that its clocks are ahead by so much, as 0.7s or -200ms",
                       &clock_offset);
  for (const ExtraFlag& flag : extra) {
    if (flag.for_tests) {
      settings.AddForTests(flag.flag, flag.help, flag.value);
    } else {
      settings.Add(flag.flag, flag.help, flag.value, flag.required);
    }
  }
  bool print_config = false;
  app.add_flag("--print-config", print_config,
               "Print what is in force and where each value came from, and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::cerr << UsageError(app, error) << std::flush;
    return kExitUsage;
  }
  absl::Status status = settings.Resolve(environment);
  const absl::Status complete = settings.CheckRequired();
  // --print-config prints missing settings, too; an incomplete configuration is checked no further.
  if (status.ok() && complete.ok()) status = TakeSettings(role, settings, flags);
  if (status.ok() && !print_config) status = complete;
  if (status.ok()) status = ReadClockOffset(clock_offset, flags);
  if (!status.ok()) {
    std::cerr << program << ": " << std::string(status.message()) << std::endl;
    return kExitUsage;
  }
  if (!print_config) return std::nullopt;
  std::cout << settings.Text() << std::flush;
  return kExitOk;
}

absl::Status SetUpLogging(PeerRole role, const std::string& name, const std::string& level,
                          const std::string& format) {
  STARLING_RETURN_IF_ERROR(CheckLogging(level, format));
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  auto logger = std::make_shared<spdlog::logger>("starling",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  const std::string who =
      role == PeerRole::kCoordinator ? name : absl::StrCat(PeerRoleName(role), " ", name);
  if (format == "json") {
    logger->set_formatter(std::make_unique<JsonFormatter>(who));
  } else {
    logger->set_pattern(absl::StrCat("%Y-%m-%dT%H:%M:%S.%eZ %-5l ", who, ": %v"),
                        spdlog::pattern_time_type::utc);
  }
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

int RunDaemon(PeerRole role, const DaemonFlags& flags,
              const std::function<absl::StatusOr<int>()>& serve) {
  RaiseFileLimit();
  absl::Status status = SetUpLogging(role, flags.name, flags.log_level, flags.log_format);
  if (status.ok()) {
    for (const std::string& warning : flags.warnings) spdlog::warn("{}", warning);
    const absl::StatusOr<int> exit_status = serve();
    if (exit_status.ok()) return *exit_status;
    status = exit_status.status();
  }
  std::cerr << ProgramOf(role) << ": " << std::string(status.message()) << std::endl;
  return kExitError;
}

absl::Status WritePortFile(const std::string& path, int port) {
  if (path.empty()) return absl::OkStatus();
  return Prefixed("port file", ReplaceFile(path, {absl::StrCat(port, "\n")}));
}

std::string NoCoordinator(absl::string_view address, absl::Duration silent,
                          const absl::Status& last_error) {
  return absl::StrCat("no coordinator at ", address, " for ",
                      absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(100))),
                      "; last error: ", last_error.ToString(),
                      "; start one with: starling-coordinator --listen ", address, " --state DIR");
}

DaemonExit::DaemonExit() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal_fd_.Reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  request_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

DaemonExit::Reason DaemonExit::Wait() { return *WaitUntil(absl::InfiniteFuture()); }

std::optional<DaemonExit::Reason> DaemonExit::WaitUntil(absl::Time deadline) {
  for (;;) {
    pollfd fds[] = {{signal_fd_.get(), POLLIN, 0}, {request_fd_.get(), POLLIN, 0}};
    int timeout = -1;
    if (deadline != absl::InfiniteFuture()) {
      const int64_t left = absl::ToInt64Milliseconds(deadline - MonotonicNow()) + 1;
      timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
    }
    const int ready = poll(fds, 2, timeout);
    if (ready == 0) return std::nullopt;
    uint64_t count = 0;
    if ((fds[1].revents & POLLIN) != 0 && read(request_fd_.get(), &count, sizeof(count)) > 0) {
      return Reason{0, exit_status_};
    }
    signalfd_siginfo info;
    if ((fds[0].revents & POLLIN) != 0 &&
        read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
      return Reason{static_cast<int>(info.ssi_signo), kExitOk};
    }
  }
}

void DaemonExit::Request(int exit_status) {
  int unset = -1;
  exit_status_.compare_exchange_strong(unset, exit_status);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(request_fd_.get(), &one, sizeof(one));
}

ExitDeadline::ExitDeadline(absl::Duration deadline, int exit_status, const char* what)
    : what_(std::make_shared<std::atomic<const char*>>(what)) {
  std::thread([deadline, exit_status, shown = what_] {
    absl::SleepFor(deadline);
    spdlog::warn("ends at once: after {} still waits for {}", absl::FormatDuration(deadline),
                 shown->load());
    _exit(exit_status);
  }).detach();
}

}  // namespace starling
