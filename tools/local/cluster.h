// A cluster of real processes on this machine, and its supervisor.
#ifndef STARLING_TOOLS_LOCAL_CLUSTER_H_
#define STARLING_TOOLS_LOCAL_CLUSTER_H_

#include <sys/types.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/local/restart_backoff.h"
#include "tools/local/state_directory.h"

namespace starling::local {

// Absolute paths of the daemons' programs.
struct Binaries {
  std::string coordinator;
  std::string shard;
  std::string worker;
};

// Looks in `binary_directory` if it is not empty; otherwise next to the client, as in an
// installation, and where Bazel puts them relative to it. kNotFound says what is missing, where it
// looked, and how to build it.
absl::StatusOr<Binaries> FindBinaries(const std::string& binary_directory,
                                      const std::string& client_directory);

struct ClusterOptions {
  StateDirectory directory;  // absolute; exists, and the caller holds its lock
  Binaries binaries;
  int shards = 2;
  int workers = 2;
  int port = 0;         // the coordinator's; 0: that of the last cluster here, or any free one
  bool fresh = false;   // forgets the jobs of earlier clusters here, once it runs
  bool restart = true;  // restarts daemons that die
  absl::Duration start_deadline = absl::Seconds(30);
  // The names of the daemons that have registered with the coordinator at this address. May block
  // for about a second.
  std::function<absl::StatusOr<std::set<std::string>>(const std::string& address)> registered;
  std::function<void(const std::string& line)> say;  // progress, for the user
  // Whether the state folder is gone; called about once a second. May be empty.
  std::function<bool()> orphaned;
};

// Main thread only, with signals held (process.h). The processes are named coordinator, shard-0,
// shard-1, ..., worker-0, ...
class Cluster {
 public:
  explicit Cluster(ClusterOptions options);
  ~Cluster();  // Stop()

  // Starts all processes; blocks until all have registered. kCancelled: a stop signal came;
  // kUnavailable: a process ended while starting (with its last log lines), the coordinator also
  // when it was started again for 2 s; kDeadlineExceeded:
  // names the missing daemons and the time waited. On error everything is stopped again, and
  // jobs and ports of the cluster before are kept.
  absl::Status Start();

  // Restarts dead processes until SIGINT, SIGTERM or SIGHUP comes or the cluster is orphaned.
  void Supervise();

  // SIGTERM to the workers, then to the shards, then to the coordinator. What is left after 5 s, or
  // at a second stop signal, is killed. Idempotent.
  void Stop();

  const std::string& address() const { return address_; }  // the coordinator's, once started
  // Its status page: "http://127.0.0.1:40123/".
  const std::string& page() const { return page_; }

 private:
  enum class Role { kCoordinator, kShard, kWorker };
  struct Daemon {
    std::string name;
    Role role;
    pid_t pid = -1;  // -1: not running
    absl::Time started = absl::InfinitePast();
    absl::Time start_again = absl::InfiniteFuture();
    RestartBackoff backoff;
  };

  absl::Status StartAll();
  absl::Status Launch(Daemon& daemon);
  absl::Status StartCoordinator(absl::Time deadline);
  absl::Status WaitForAddress(absl::Time deadline);
  absl::Status WaitForRegistration(absl::Time deadline);
  absl::Status WaitBriefly(absl::Duration patience);  // while starting: any death is an error
  void OnDeath(Daemon& daemon, int wait_status);
  void LaunchDue();
  void Signal(Role role, int signal);
  void WaitForEnd(absl::Time deadline, const std::set<Role>& roles);
  // Reaps ended processes; calls `dead` for each.
  void Reap(const std::function<void(Daemon&, int wait_status)>& dead);

  const ClusterOptions options_;
  std::vector<Daemon> daemons_;  // the coordinator first
  std::string address_;
  std::string page_;
  bool killed_ = false;  // a second stop signal came
};

}  // namespace starling::local

#endif  // STARLING_TOOLS_LOCAL_CLUSTER_H_
