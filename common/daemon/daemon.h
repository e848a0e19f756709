// What every daemon's main does: flags, logging, the port file, signals.
//
//   int main(int argc, char** argv) {
//     TuneMalloc();
//     DaemonExit exit_request;                  // before any thread starts
//     DaemonFlags flags; ParseDaemonFlags(...);
//     SetUpLogging(PeerRole::kShard, flags.name, flags.log_level, flags.log_format);
//     LogWarnings(flags);
//     ... start ...; WritePortFile(...)
//     exit_request.Wait();                      // SIGTERM, SIGINT, or Request
//     ... drain, stop ...
//   }
#ifndef STARLING_COMMON_DAEMON_DAEMON_H_
#define STARLING_COMMON_DAEMON_DAEMON_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
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
  std::string advertise_address;  // "host:port"; empty, or port 0: as it listens
  std::string coordinator;        // workers and shards
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
  std::vector<std::string> warnings;             // for LogWarnings
};

// Reads the settings of the daemon of this role from its command line and the environment
// (settings.h), and its certificates. `extra` are settings of its own, each with a value. Returns
// an exit status where the process is to end now (help, version, --print-config, a mistake; the
// text was printed), nothing where it is to go on. Starts a thread where there are certificates to
// watch: after DaemonExit.
struct ExtraFlag {
  std::string flag;  // "--state"
  std::string help;
  std::string* value;
  bool required = false;
  bool for_tests = false;  // --help leaves it out: docs/diagnosis.md has it
};
std::optional<int> ParseDaemonFlags(int argc, const char* const* argv, PeerRole role,
                                    const std::vector<ExtraFlag>& extra, DaemonFlags* flags,
                                    const Environment& environment = ProcessEnvironment());

// The settings of a process's links: --tls-cert, --tls-key, --tls-ca, --cluster, --insecure.
void AddLinkSettings(Settings& settings, DaemonFlags* flags);
// From those. kInvalidArgument: not all three of the files, TLS and --insecure at once, and as
// LinkSecurity::Tls.
absl::StatusOr<std::shared_ptr<const LinkSecurity>> MakeLinkSecurity(const DaemonFlags& flags,
                                                                     PeerRole role);

// What a daemon that listens on `listening` ("0.0.0.0:7071") is reached at: `advertise`, whose port
// may be 0 or missing for the one that is listened on, or that very address. kInvalidArgument:
// nobody can connect to it.
absl::StatusOr<std::string> AdvertisedAddress(absl::string_view advertise,
                                              absl::string_view listening);

// Once logging is set up: variables that nobody reads, links that nothing protects.
void LogWarnings(const DaemonFlags& flags);

// What is to be said wherever a cluster's state is shown while its links are plain.
inline constexpr char kInsecureWarning[] =
    "started with --insecure: anyone who reaches its port can read and change everything";

// Raises the limit on open files as far as the system lets it: each connection is one.
void RaiseFileLimit();

// All of the process's logging goes to stderr, one line an event: "2026-01-31T12:00:00.123Z info
// shard ps-0: text"; with `format` json an object of time, level, process and message. Also
// silences gRPC's own, unless GRPC_VERBOSITY is set. kInvalidArgument names the levels and formats.
absl::Status SetUpLogging(PeerRole role, const std::string& name, const std::string& level,
                          const std::string& format = "text");

// Writes the port in decimal and a newline, atomically.
absl::Status WritePortFile(const std::string& path, int port);

// "no coordinator at 127.0.0.1:7070 for 12s; last error: ...; start one with:
// starling-coordinator --listen 127.0.0.1:7070 --state DIR"
std::string NoCoordinator(absl::string_view address, absl::Duration silent,
                          const absl::Status& last_error);

// Waits for a reason to end. Its constructor blocks SIGTERM and SIGINT for the thread and all that
// it starts later, and ignores SIGPIPE. One in a process; thread-safe.
class DaemonExit {
 public:
  DaemonExit();
  ~DaemonExit();
  DaemonExit(const DaemonExit&) = delete;
  DaemonExit& operator=(const DaemonExit&) = delete;

  struct Reason {
    int signal = 0;             // SIGTERM or SIGINT; 0: Request was called
    int exit_status = kExitOk;  // as requested
  };

  // Blocks until the next signal or request; what came before counts. May be called again (a second
  // signal, during a drain).
  Reason Wait();
  // As Wait, but until `deadline` (of MonotonicNow's); nothing when it passed.
  std::optional<Reason> WaitUntil(absl::Time deadline);

  // Asks the process to end. The first request's status counts.
  void Request(int exit_status);

 private:
  int signal_fd_ = -1;
  int request_fd_ = -1;
  std::atomic<int> exit_status_ = -1;
};

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_DAEMON_H_
