#include "tools/local/cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"
#include "tools/local/process.h"

namespace starling::local {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr absl::Duration kSayInterval = absl::Seconds(5);
constexpr absl::Duration kCoordinatorTries = absl::Seconds(2);
// From the start of the stop: workers finish their units while the shards are up, and deregister
// while the coordinator is up.
constexpr absl::Duration kWorkersStop = absl::Milliseconds(2500);
constexpr absl::Duration kShardsStop = absl::Milliseconds(4000);
constexpr absl::Duration kAllStop = absl::Seconds(5);

bool IsStop(int signal) { return signal != SIGCHLD; }

// Whether nobody listens at this port of the loopback address.
bool IsFree(const std::string& text) {
  uint32_t port = 0;
  if (!absl::SimpleAtoi(text, &port) || port == 0 || port > 65535) return false;
  const OwnedFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.open()) return false;
  const int reuse = 1;  // connections of the daemon before may not be over
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// The port that a daemon recorded when it last started, or "0"; removes the file. `again`: it was
// started by this cluster, so the port is its own.
std::string TakePort(const std::string& path, bool again) {
  const std::string port = ReadSmallFile(path).value_or("");
  unlink(path.c_str());
  const bool usable = again ? !port.empty() : IsFree(port);
  return usable ? port : "0";
}

}  // namespace

Cluster::Cluster(ClusterOptions options) : options_(std::move(options)) {
  daemons_.push_back({"coordinator", Role::kCoordinator});
  for (int i = 0; i < options_.shards; ++i)
    daemons_.push_back({absl::StrCat("shard-", i), Role::kShard});
  for (int i = 0; i < options_.workers; ++i)
    daemons_.push_back({absl::StrCat("worker-", i), Role::kWorker});
}

Cluster::~Cluster() { Stop(); }

// If it fails, the next start finds what this one found: jobs, and ports.
absl::Status Cluster::Start() {
  const StateDirectory& directory = options_.directory;
  std::map<std::string, std::string> ports;  // by path
  for (const Daemon& daemon : daemons_) {
    for (const std::string& path :
         {directory.PortPath(daemon.name), directory.AdminPortPath(daemon.name)})
      ports[path] = ReadSmallFile(path).value_or("");
  }
  absl::Status status = StartAll();
  if (status.ok()) return status;
  Stop();
  absl::Status back = directory.PutBack();
  for (const auto& [path, port] : ports) {
    if (!port.empty()) back.Update(WriteSmallFile(path, port));
  }
  if (!back.ok()) options_.say(std::string(back.message()));
  return status;
}

absl::Status Cluster::StartAll() {
  STARLING_RETURN_IF_ERROR(options_.directory.Clear(options_.fresh));
  const absl::Time deadline = MonotonicNow() + options_.start_deadline;
  address_ = absl::StrCat("127.0.0.1:", options_.port);
  STARLING_RETURN_IF_ERROR(StartCoordinator(deadline));
  for (size_t i = 1; i < daemons_.size(); ++i) STARLING_RETURN_IF_ERROR(Launch(daemons_[i]));
  STARLING_RETURN_IF_ERROR(WaitForRegistration(deadline));
  STARLING_RETURN_IF_ERROR(options_.directory.Forget());
  return WriteSmallFile(options_.directory.AddressPath(), address_);
}

absl::Status Cluster::Launch(Daemon& daemon) {
  const StateDirectory& directory = options_.directory;
  const bool coordinator = daemon.role == Role::kCoordinator;
  const std::string& binary = coordinator                   ? options_.binaries.coordinator
                              : daemon.role == Role::kShard ? options_.binaries.shard
                                                            : options_.binaries.worker;
  const std::string port_path = directory.PortPath(daemon.name);
  const std::string admin_path = directory.AdminPortPath(daemon.name);
  // A daemon listens where it, or that of an earlier cluster, did before. The coordinator thus
  // takes it for the successor at once instead of waiting for the old one's silence, and its admin
  // port stays where it was.
  const bool again = daemon.started != absl::InfinitePast();
  const std::string port = TakePort(port_path, again);
  const std::string admin_port = TakePort(admin_path, again);
  if (coordinator && !again && options_.port == 0) address_ = absl::StrCat("127.0.0.1:", port);
  std::vector<std::string> argv = {binary,
                                   "--name",
                                   daemon.name,
                                   "--port-file",
                                   port_path,
                                   "--listen",
                                   coordinator ? address_ : absl::StrCat("127.0.0.1:", port),
                                   "--admin-port-file",
                                   admin_path,
                                   "--admin-address",
                                   absl::StrCat("127.0.0.1:", admin_port)};
  if (coordinator) {
    argv.insert(argv.end(), {"--state", directory.CoordinatorStatePath(),
                             // Clients and daemons belong to the same user here, so clients may
                             // write wherever the user may.
                             "--tensorboard-root", "/", "--output-root", directory.OutputsPath()});
  } else {
    argv.insert(argv.end(), {"--coordinator", address_});
  }
  if (coordinator) argv.insert(argv.end(), {"--checkpoint-every", "60s", "--checkpoint-keep", "2"});
  if (daemon.role != Role::kWorker)
    argv.insert(argv.end(), {"--checkpoint-root", directory.CheckpointsPath()});
  daemon.start_again = absl::InfiniteFuture();
  STARLING_ASSIGN_OR_RETURN(daemon.pid, Spawn(argv, directory.LogPath(daemon.name)));
  daemon.started = MonotonicNow();
  return WriteSmallFile(directory.PidPath(daemon.name), absl::StrCat(daemon.pid));
}

// Where a supervisor was killed, its coordinator may hold for a moment what this one needs, its
// ports among it. Each try takes those of the cluster before if they are free.
absl::Status Cluster::StartCoordinator(absl::Time deadline) {
  const absl::Time until = MonotonicNow() + kCoordinatorTries;
  Daemon& coordinator = daemons_[0];
  std::map<std::string, std::string> ports;  // by path
  for (const std::string& path : {options_.directory.PortPath(coordinator.name),
                                  options_.directory.AdminPortPath(coordinator.name)})
    ports[path] = ReadSmallFile(path).value_or("");
  for (;;) {
    for (const auto& [path, port] : ports) STARLING_RETURN_IF_ERROR(WriteSmallFile(path, port));
    coordinator.started = absl::InfinitePast();
    STARLING_RETURN_IF_ERROR(Launch(coordinator));
    const absl::Status status = WaitForAddress(deadline);
    if (status.ok()) return status;
    if (!absl::IsUnavailable(status) || MonotonicNow() >= until) return status;
    STARLING_RETURN_IF_ERROR(WaitBriefly(kPoll));
  }
}

absl::Status Cluster::WaitForAddress(absl::Time deadline) {
  for (;;) {
    const auto text = ReadSmallFile(options_.directory.PortPath("coordinator"));
    const auto admin_port = ReadSmallFile(options_.directory.AdminPortPath("coordinator"));
    if (text.ok() && !text->empty() && admin_port.ok() && !admin_port->empty()) {
      address_ = absl::StrContains(*text, ':') ? *text : absl::StrCat("127.0.0.1:", *text);
      page_ = absl::StrCat("http://127.0.0.1:", *admin_port, "/");
      return absl::OkStatus();
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the coordinator did not listen within ", absl::FormatDuration(options_.start_deadline),
          "; its last words:\n", LastLines(options_.directory.LogPath("coordinator"), 5)));
    }
    STARLING_RETURN_IF_ERROR(WaitBriefly(kPoll));
  }
}

absl::Status Cluster::WaitForRegistration(absl::Time deadline) {
  const absl::Time begin = MonotonicNow();
  absl::Time next_say = begin + kSayInterval;
  for (;;) {
    const auto registered = options_.registered(address_);
    std::vector<std::string> missing;
    for (const Daemon& daemon : daemons_) {
      const bool there = registered.ok() && registered->count(daemon.name) > 0;
      if (daemon.role != Role::kCoordinator && !there) missing.push_back(daemon.name);
    }
    if (registered.ok() && missing.empty()) return absl::OkStatus();
    const absl::Time now = MonotonicNow();
    const std::string waits = absl::StrFormat(
        "waits for %s to register with %s since %.0f s%s%s", absl::StrJoin(missing, ", "), address_,
        absl::ToDoubleSeconds(now - begin), registered.ok() ? "" : "; last error: ",
        registered.ok() ? "" : std::string(registered.status().message()));
    if (now >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("gave up: ", waits, "; logs: ", options_.directory.root(), "/logs"));
    }
    if (now >= next_say) {
      options_.say(waits);
      next_say = now + kSayInterval;
    }
    STARLING_RETURN_IF_ERROR(WaitBriefly(kPoll));
  }
}

absl::Status Cluster::WaitBriefly(absl::Duration patience) {
  const auto signal = TakeSignal(patience);
  if (signal && IsStop(*signal)) return absl::CancelledError("stopped while starting");
  absl::Status status;
  Reap([&](Daemon& daemon, int wait_status) {
    status.Update(absl::UnavailableError(absl::StrCat(
        daemon.name, " ", ExitText(wait_status), " at its start; its last words:\n",
        LastLines(options_.directory.LogPath(daemon.name), 5),
        daemon.role == Role::kCoordinator && !options_.fresh
            ? "If these words are about what an earlier cluster left: starling local up --fresh "
              "begins without that, and forgets its jobs"
            : "")));
  });
  return status;
}

void Cluster::Reap(const std::function<void(Daemon&, int)>& dead) {
  for (Daemon& daemon : daemons_) {
    int wait_status = 0;
    if (daemon.pid < 0 || waitpid(daemon.pid, &wait_status, WNOHANG) != daemon.pid) continue;
    unlink(options_.directory.PidPath(daemon.name).c_str());
    dead(daemon, wait_status);
    daemon.pid = -1;
  }
}

void Cluster::OnDeath(Daemon& daemon, int wait_status) {
  std::string line =
      absl::StrCat(daemon.name, " (process ", daemon.pid, ") ", ExitText(wait_status));
  if (daemon.role == Role::kShard)
    absl::StrAppend(&line,
                    "; jobs go on with their parameters' other copies, or, without any, "
                    "from their last checkpoint");
  if (options_.restart) {
    const absl::Time now = MonotonicNow();
    const absl::Duration delay = daemon.backoff.OnDeath(now - daemon.started);
    daemon.start_again = now + delay;
    absl::StrAppend(&line, "; starting it again in ", absl::FormatDuration(delay));
  }
  options_.say(line);
}

void Cluster::LaunchDue() {
  for (Daemon& daemon : daemons_) {
    if (daemon.start_again > MonotonicNow()) continue;
    const absl::Status status = Launch(daemon);
    if (status.ok()) continue;
    const absl::Duration delay = daemon.backoff.OnDeath(absl::ZeroDuration());
    daemon.start_again = MonotonicNow() + delay;
    options_.say(absl::StrCat(daemon.name, ": ", std::string(status.message()), "; again in ",
                              absl::FormatDuration(delay)));
  }
}

void Cluster::Supervise() {
  for (;;) {
    absl::Time next = MonotonicNow() + absl::Seconds(1);
    for (const Daemon& daemon : daemons_) next = std::min(next, daemon.start_again);
    const auto signal = TakeSignal(next - MonotonicNow());
    if (signal && IsStop(*signal)) return;
    if (options_.orphaned && options_.orphaned()) {
      return options_.say(absl::StrCat("the state folder ", options_.directory.root(),
                                       " is gone: nobody could find or stop this cluster"));
    }
    Reap([this](Daemon& daemon, int wait_status) { OnDeath(daemon, wait_status); });
    LaunchDue();
  }
}

void Cluster::Signal(Role role, int signal) {
  for (const Daemon& daemon : daemons_) {
    if (daemon.role == role && daemon.pid > 0) kill(daemon.pid, signal);
  }
}

void Cluster::WaitForEnd(absl::Time deadline, const std::set<Role>& roles) {
  for (;;) {
    Reap([](Daemon&, int) {});
    const bool runs = std::any_of(daemons_.begin(), daemons_.end(), [&](const Daemon& daemon) {
      return daemon.pid > 0 && roles.count(daemon.role) > 0;
    });
    if (!runs || killed_ || MonotonicNow() >= deadline) return;
    const auto signal = TakeSignal(std::min(kPoll, deadline - MonotonicNow()));
    if (signal && IsStop(*signal)) killed_ = true;
  }
}

void Cluster::Stop() {
  const absl::Time begin = MonotonicNow();
  Signal(Role::kWorker, SIGTERM);
  WaitForEnd(begin + kWorkersStop, {Role::kWorker});
  Signal(Role::kShard, SIGTERM);
  WaitForEnd(begin + kShardsStop, {Role::kWorker, Role::kShard});
  Signal(Role::kShard, SIGTERM);  // those that still drain end at once
  Signal(Role::kCoordinator, SIGTERM);
  WaitForEnd(begin + kAllStop, {Role::kWorker, Role::kShard, Role::kCoordinator});
  for (Daemon& daemon : daemons_) {
    if (daemon.pid <= 0) continue;
    options_.say(absl::StrCat(daemon.name, " did not end in time and is killed"));
    kill(daemon.pid, SIGKILL);
    waitpid(daemon.pid, nullptr, 0);
    unlink(options_.directory.PidPath(daemon.name).c_str());
    daemon.pid = -1;
  }
  unlink(options_.directory.AddressPath().c_str());
}

absl::StatusOr<Binaries> FindBinaries(const std::string& binary_directory,
                                      const std::string& client_directory) {
  namespace fs = std::filesystem;
  Binaries found;
  struct Wanted {
    const char* name;
    const char* folder;  // the folder in the source tree
    std::string* path;
  };
  for (const Wanted& wanted :
       {Wanted{"starling-coordinator", "server/coordinator", &found.coordinator},
        Wanted{"starling-ps", "server/shard", &found.shard},
        Wanted{"starling-worker", "worker", &found.worker}}) {
    std::vector<fs::path> places;
    if (!binary_directory.empty()) {
      places = {fs::path(binary_directory) / wanted.name,
                fs::path(binary_directory) / wanted.folder / wanted.name};
    } else {
      const fs::path client(client_directory);
      places = {client / wanted.name,
                client.parent_path().parent_path() / wanted.folder / wanted.name};
    }
    const auto place = std::find_if(places.begin(), places.end(), [](const fs::path& path) {
      return access(path.c_str(), X_OK) == 0;
    });
    if (place == places.end()) {
      return absl::NotFoundError(absl::StrCat("there is no ", wanted.name, " at ",
                                              places[0].string(), " nor at ", places[1].string(),
                                              "; build it with: bazel build //", wanted.folder, ":",
                                              wanted.name, ", or give --bin-dir"));
    }
    *wanted.path = fs::absolute(*place).string();
  }
  return found;
}

}  // namespace starling::local
