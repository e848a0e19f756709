// Opens files whose paths come from a client, beneath a folder that the operator chose. Each
// component is opened by itself and no link is followed, so a client that can write beneath the
// root cannot make a path leave it, not even between a check and the open.
#ifndef STARLING_COMMON_BASE_BENEATH_H_
#define STARLING_COMMON_BASE_BENEATH_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/owned_fd.h"

namespace starling {

// Thread-safe. Calls block as the file system does. Paths are relative to the root.
// kInvalidArgument: the path is absolute, empty, or has "..", "." or a zero byte, or one of its
// folders is a link or a file. kNotFound: it is not there; kPermissionDenied: what lies beneath the
// root may not be opened; kFailedPrecondition: the rest. The message names the component and the
// reason. With "/" as the root every path is beneath it, and links are followed.
class BeneathRoot {
 public:
  // `root` must exist (kFailedPrecondition); it may be or contain a link.
  static absl::StatusOr<BeneathRoot> Open(const std::string& root);

  // Opens a folder for reading. `make`: creates missing folders (0777 less the umask). ".": the
  // root.
  absl::StatusOr<OwnedFd> OpenFolder(absl::string_view path, bool make) const;

  // As openat(2) with `flags` and O_CLOEXEC | O_NOFOLLOW. O_CREAT creates missing folders, too.
  absl::StatusOr<OwnedFd> OpenFile(absl::string_view path, int flags, mode_t mode = 0644) const;

  const std::string& path() const { return path_; }

 private:
  BeneathRoot(std::string path, OwnedFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  int no_follow() const;
  absl::StatusOr<OwnedFd> Walk(const std::vector<std::string>& folders, bool make) const;
  absl::Status CannotOpen(int folder, const std::string& name, absl::string_view shown,
                          int error) const;

  std::string path_;
  OwnedFd fd_;
};

}  // namespace starling

#endif  // STARLING_COMMON_BASE_BENEATH_H_
