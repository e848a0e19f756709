// One supervisor per state folder, identified by its lock rather than by a process id, which may
// have been reused.
#ifndef STARLING_TOOLS_LOCAL_INSTANCE_LOCK_H_
#define STARLING_TOOLS_LOCAL_INSTANCE_LOCK_H_

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/owned_fd.h"

namespace starling::local {

// Held until destroyed or until the process ends in any way. Not inherited by fork: take it in the
// process that stays.
class InstanceLock {
 public:
  // kAlreadyExists names the process that holds it.
  static absl::StatusOr<InstanceLock> Take(const std::string& path);

  // False: the file was deleted meanwhile, so no other process sees this lock.
  bool in_place() const;

 private:
  explicit InstanceLock(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

// The process that holds the lock; 0: none. Never call it in the process that holds the lock: it
// would release it.
absl::StatusOr<pid_t> LockHolder(const std::string& path);

// Sends SIGTERM to the holder, and SIGKILL if it still holds the lock after `patience`; blocks
// until the lock is free. False: the lock was not held. kDeadlineExceeded: it is still held.
absl::StatusOr<bool> StopLockHolder(const std::string& path, absl::Duration patience);

}  // namespace starling::local

#endif  // STARLING_TOOLS_LOCAL_INSTANCE_LOCK_H_
