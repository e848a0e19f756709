#include "tools/local/instance_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

extern "C" {  // missing from the header of glibc 2.36
#include <sys/pidfd.h>
}

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"

namespace starling::local {
namespace {

struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

absl::StatusOr<bool> WaitUntilFree(const std::string& path, absl::Time deadline) {
  for (;;) {
    STARLING_ASSIGN_OR_RETURN(const pid_t holder, LockHolder(path));
    if (holder == 0) return true;
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
}

}  // namespace

absl::StatusOr<InstanceLock> InstanceLock::Take(const std::string& path) {
  InstanceLock lock(OwnedFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)));
  const int fd = lock.fd_.get();
  if (fd < 0) return SystemError("open", path);
  struct flock whole = WholeFile();
  if (fcntl(fd, F_SETLK, &whole) == 0) return lock;
  if (errno != EAGAIN && errno != EACCES) return SystemError("lock", path);
  whole = WholeFile();
  const pid_t holder = fcntl(fd, F_GETLK, &whole) == 0 ? whole.l_pid : 0;
  return absl::AlreadyExistsError(absl::StrCat("process ", holder, " holds ", path));
}

bool InstanceLock::in_place() const {
  struct stat file = {};
  return fstat(fd_.get(), &file) == 0 && file.st_nlink > 0;
}

absl::StatusOr<pid_t> LockHolder(const std::string& path) {
  const OwnedFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.open() && errno == ENOENT) return 0;
  if (!file.open()) return SystemError("open", path);
  struct flock whole = WholeFile();
  if (fcntl(file.get(), F_GETLK, &whole) != 0) return SystemError("look at the lock of", path);
  return whole.l_type == F_UNLCK ? 0 : whole.l_pid;
}

absl::StatusOr<bool> StopLockHolder(const std::string& path, absl::Duration patience) {
  STARLING_ASSIGN_OR_RETURN(const pid_t holder, LockHolder(path));
  if (holder == 0) return false;
  const OwnedFd process(pidfd_open(holder, 0));
  // It held the lock before and after pidfd_open, so the descriptor is that process's.
  const auto still = LockHolder(path);
  absl::StatusOr<bool> free = true;
  if (process.open() && still.ok() && *still == holder) {
    pidfd_send_signal(process.get(), SIGTERM, nullptr, 0);
    free = WaitUntilFree(path, MonotonicNow() + patience);
    if (free.ok() && !*free) {
      pidfd_send_signal(process.get(), SIGKILL, nullptr, 0);
      free = WaitUntilFree(path, MonotonicNow() + absl::Seconds(2));
    }
  }
  STARLING_RETURN_IF_ERROR(free.status());
  if (!*free) return absl::DeadlineExceededError(absl::StrCat("process ", holder, " does not end"));
  return true;
}

}  // namespace starling::local
