// One supervisor per state folder, found by its lock and not by a process id that may have been
// reused.
#ifndef STARLING_TOOLS_LOCAL_INSTANCE_LOCK_H_
#define STARLING_TOOLS_LOCAL_INSTANCE_LOCK_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace starling::local {

// Held until destroyed or until the process ends, however it ends. Not inherited by fork: take it
// in the process that stays.
class InstanceLock {
 public:
  // kAlreadyExists names the process that holds it.
  static absl::StatusOr<InstanceLock> Take(const std::string& path);

  InstanceLock(InstanceLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  InstanceLock& operator=(InstanceLock&&) = delete;
  ~InstanceLock();

  // False: the file was deleted meanwhile, so nobody else meets this lock.
  bool in_place() const;

 private:
  explicit InstanceLock(int fd) : fd_(fd) {}
  int fd_;
};

// The process that holds the lock; 0: none. Never in the process that holds it: looking would let
// go.
absl::StatusOr<pid_t> LockHolder(const std::string& path);

// Sends SIGTERM to the holder, and SIGKILL to one that still holds it after `patience`; returns
// when the lock is free. False: nobody held it. kDeadlineExceeded: it is held all the same.
absl::StatusOr<bool> StopLockHolder(const std::string& path, absl::Duration patience);

}  // namespace starling::local

#endif  // STARLING_TOOLS_LOCAL_INSTANCE_LOCK_H_
