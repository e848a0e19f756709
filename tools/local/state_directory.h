// The folder of a local cluster and its layout.
//
//   lock                held by the supervisor while the cluster runs
//   address             the coordinator's host:port, while the cluster runs
//   coordinator.before/ while a fresh cluster starts: the state of the one before
//   coordinator/        the coordinator's durable state; kept when a cluster ends, like these:
//   outputs/            what jobs with spec.output wrote
//   checkpoints/        the cluster's --checkpoint-root
//   logs/NAME.log       each daemon's log, and the supervisor's
//   run/NAME.pid        each running daemon's process id
//   run/NAME.address    its listening address, written by itself; kept for its next start, like
//   run/NAME.admin      that of its admin port
#ifndef STARLING_TOOLS_LOCAL_STATE_DIRECTORY_H_
#define STARLING_TOOLS_LOCAL_STATE_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace starling::local {

// Thread-safe; holds only the path.
class StateDirectory {
 public:
  explicit StateDirectory(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  std::string LockPath() const { return root_ + "/lock"; }
  std::string AddressPath() const { return root_ + "/address"; }
  std::string CoordinatorStatePath() const { return root_ + "/coordinator"; }
  std::string OutputsPath() const { return root_ + "/outputs"; }
  std::string CheckpointsPath() const { return root_ + "/checkpoints"; }
  std::string LogPath(const std::string& name) const { return root_ + "/logs/" + name + ".log"; }
  std::string PidPath(const std::string& name) const { return root_ + "/run/" + name + ".pid"; }
  std::string PortPath(const std::string& name) const {
    return root_ + "/run/" + name + ".address";
  }
  std::string AdminPortPath(const std::string& name) const {
    return root_ + "/run/" + name + ".admin";
  }

  // Creates the folder and its subfolders, accessible to the user only. A folder that exists keeps
  // its mode. kFailedPrecondition: it is somebody else's, since it has other things in it, or
  // others may write there. kUnavailable with the system's reason.
  absl::Status Create() const;

  // These three require the lock.
  //
  // Removes what an earlier cluster left and another one does not go on with. `fresh`: also sets
  // the coordinator's state aside, until Forget or PutBack. If neither was called after the last
  // time, that start did not come to its end: its state is replaced by what it had set aside.
  absl::Status Clear(bool fresh) const;
  // Removes what Clear has set aside.
  absl::Status Forget() const;
  // Replaces the coordinator's state by what Clear has set aside, if it has.
  absl::Status PutBack() const;

  // kNotFound: no cluster runs here. ReadSmallFile's other errors.
  absl::StatusOr<std::string> ReadAddress() const;

 private:
  absl::Status CheckOurs() const;
  std::string BeforePath() const { return root_ + "/coordinator.before"; }
  std::string ForgottenPath() const { return root_ + "/coordinator.forgotten"; }

  std::string root_;
};

// The whole file without surrounding white space. ReadText's errors (common/base/files.h), of which
// kNotFound says that it does not exist.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

// Atomic: writes a temporary file and renames it.
absl::Status WriteSmallFile(const std::string& path, const std::string& text);

// The file's last lines, each indented by two spaces; empty if it does not exist.
std::string LastLines(const std::string& path, int count);

}  // namespace starling::local

#endif  // STARLING_TOOLS_LOCAL_STATE_DIRECTORY_H_
