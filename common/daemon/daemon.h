// What every daemon's main needs: flags, logging, the port file, signals.
//
//   int main(int argc, char** argv) {
//     TuneMalloc();
//     DaemonExit exit_request;                  // before any thread starts
//     DaemonFlags flags; ParseDaemonFlags(...);
//     return RunDaemon(PeerRole::kShard, flags, [&]() -> absl::StatusOr<int> {
//       ... start ...; WritePortFile(...)
//       const int exit_status = exit_request.Wait().exit_status;  // SIGTERM, SIGINT, or Request
//       ... drain, stop ...
//       return exit_status;
//     });
//   }
#ifndef STARLING_COMMON_DAEMON_DAEMON_H_
#define STARLING_COMMON_DAEMON_DAEMON_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/owned_fd.h"
#include "common/daemon/settings.h"
#include "common/transport/identity.h"
#include "common/transport/link_security.h"

namespace starling {

// Exit statuses of daemons.
inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;

inline constexpr char kDefaultCluster[] = "starling";

struct DaemonFlags {
  std::string name;
  std::string listen = "127.0.0.1:0";
  std::string port_file;
  std::string admin_address = "127.0.0.1:0";
  std::string admin_port_file;
  std::string advertise_address;  // "host:port"; empty or port 0: as it listens
  std::string coordinator;        // for workers and shards
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  std::string cluster = kDefaultCluster;
  bool insecure = false;
  std::string log_level = "info";
  std::string log_format = "text";
  absl::Duration clock_offset;  // for tests

  // Set by ParseDaemonFlags.
  std::shared_ptr<const LinkSecurity> security;  // never null
  std::vector<std::string> warnings;             // logged by RunDaemon
};

// Reads the settings of a daemon of this role from its command line and the environment
// (settings.h), and loads its certificates. `extra` are the daemon's own settings, each with a
// value. Returns an exit status if the process must exit now (help, version, --print-config, an
// error; the text was printed), else nullopt. Starts a thread if there are certificates to watch,
// so construct DaemonExit first.
struct ExtraFlag {
  std::string flag;  // "--state"
  std::string help;
  std::string* value;
  bool required = false;
  bool for_tests = false;  // not in --help but in docs/diagnosis.md
};
std::optional<int> ParseDaemonFlags(int argc, const char* const* argv, PeerRole role,
                                    const std::vector<ExtraFlag>& extra, DaemonFlags* flags,
                                    const Environment& environment = ProcessEnvironment());

// Adds the settings of a process's links: --tls-cert, --tls-key, --tls-ca, --cluster, --insecure.
void AddLinkSettings(Settings& settings, DaemonFlags* flags);
// Loads what AddLinkSettings read. kInvalidArgument: not all three files are given, or TLS and
// --insecure are given at once, or as LinkSecurity::Tls.
absl::StatusOr<std::shared_ptr<const LinkSecurity>> MakeLinkSecurity(const DaemonFlags& flags,
                                                                     PeerRole role);

// The address at which a daemon that listens on `listening` ("0.0.0.0:7071") is reached:
// `advertise`, with the listening port if its port is 0 or missing, or else `listening` itself.
// kInvalidArgument: no peer can connect to it.
absl::StatusOr<std::string> AdvertisedAddress(absl::string_view advertise,
                                              absl::string_view listening);

// The value of --drain-timeout, for how long a daemon that was asked to stop hands over its work:
// "20s", "1h30m", up to a day. kInvalidArgument quotes the text.
absl::StatusOr<absl::Duration> ParseDrainTimeout(const std::string& text);

// The value of --shared-memory, of workers and shards: auto (true) or off. kInvalidArgument quotes
// the text.
inline constexpr char kSharedMemoryHelp[] =
    "auto: tensors between a worker and a shard of one host go through shared memory; off: through "
    "their TCP connection, as those between hosts";
absl::StatusOr<bool> ParseSharedMemory(const std::string& text);

// Shown wherever the state of a cluster with plain links is shown.
inline constexpr char kInsecureWarning[] =
    "started with --insecure: anyone who reaches its port can read and change everything";

// Raises the limit on open files as far as the system allows: each connection needs one.
void RaiseFileLimit();

// All logging of the process goes to stderr, one line per event: "2026-01-31T12:00:00.123Z info
// shard ps-0: text"; with `format` json an object of time, level, process and message. Also
// silences gRPC's logging unless GRPC_VERBOSITY is set. kInvalidArgument lists the levels and
// formats.
absl::Status SetUpLogging(PeerRole role, const std::string& name, const std::string& level,
                          const std::string& format = "text");

// Raises the limit on open files, sets up logging, logs `flags.warnings` (variables that no program
// reads, unprotected links), and calls `serve`. Returns the process's exit status: what `serve`
// returns, or kExitError if it fails, after printing its error.
int RunDaemon(PeerRole role, const DaemonFlags& flags,
              const std::function<absl::StatusOr<int>()>& serve);

// Writes the port in decimal and a newline, atomically; does nothing if `path` is empty.
absl::Status WritePortFile(const std::string& path, int port);

// "no coordinator at 127.0.0.1:7070 for 12s; last error: ...; start one with:
// starling-coordinator --listen 127.0.0.1:7070 --state DIR"
std::string NoCoordinator(absl::string_view address, absl::Duration silent,
                          const absl::Status& last_error);

// Waits for a reason to exit. The constructor blocks SIGTERM and SIGINT in the calling thread and
// all threads that it starts later, and ignores SIGPIPE. One per process; thread-safe.
class DaemonExit {
 public:
  DaemonExit();

  struct Reason {
    int signal = 0;             // SIGTERM or SIGINT; 0: Request was called
    int exit_status = kExitOk;  // as requested
  };

  // Blocks until the next signal or request; earlier ones count. May be called again (for a second
  // signal during a drain).
  Reason Wait();
  // As Wait, but until `deadline` (MonotonicNow); nullopt: it passed.
  std::optional<Reason> WaitUntil(absl::Time deadline);

  // Asks the process to exit. The first request's status counts.
  void Request(int exit_status);

 private:
  OwnedFd signal_fd_;
  OwnedFd request_fd_;
  std::atomic<int> exit_status_ = -1;
};

// Ends the process if it still runs `deadline` after the construction, since what its end waits for
// may hang, such as a disk: logs what that is, and calls _exit. Cannot be revoked: destruction
// changes nothing. Thread-safe.
class ExitDeadline {
 public:
  // `what`: a string literal, as in "still waits for `what`".
  ExitDeadline(absl::Duration deadline, int exit_status, const char* what);

  // The end waits for `what` from now on.
  void WaitsFor(const char* what) { *what_ = what; }

 private:
  const std::shared_ptr<std::atomic<const char*>> what_;
};

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_DAEMON_H_
