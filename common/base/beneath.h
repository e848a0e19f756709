// Files whose paths a client chose, beneath a folder that the operator chose. Each component is
// opened by itself and no link is followed, so nobody who can write beneath the root can make a
// path lead out of it, not even between a check and the opening.
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
// kInvalidArgument: a path that is absolute, empty or has "..", "." or a zero byte.
// kFailedPrecondition: it cannot be opened; the text names the component and says why. With "/" as
// the root every path lies beneath, and links are followed.
class BeneathRoot {
 public:
  // `root` itself may be or contain a link. It must be there.
  static absl::StatusOr<BeneathRoot> Open(const std::string& root);

  // Open for reading. `make`: folders that are not there are made (0777 less the umask). With ".":
  // the root.
  absl::StatusOr<OwnedFd> OpenFolder(absl::string_view path, bool make) const;

  // As openat(2) with `flags` and O_CLOEXEC | O_NOFOLLOW. With O_CREAT its folders are made, too.
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
