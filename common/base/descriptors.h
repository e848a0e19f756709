// Whether the process has file descriptors left for incoming connections.
#ifndef STARLING_COMMON_BASE_DESCRIPTORS_H_
#define STARLING_COMMON_BASE_DESCRIPTORS_H_

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/owned_fd.h"

namespace starling {

// Reserved for the process's own files and links, and for its admin port.
inline constexpr uint64_t kDescriptorsKept = 128;

// Empty if there are some, else a message on why new connections must wait. Thread-safe. Asks the
// system: the lowest free descriptor is a lower bound on how many are in use.
inline std::string WhyNoDescriptors() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  const uint64_t kept = std::min<uint64_t>(kDescriptorsKept, limit.rlim_cur / 4);
  const OwnedFd free(open("/", O_PATH | O_CLOEXEC));
  if (!free.open() && errno == ENFILE)
    return "the machine is out of file descriptors (fs.file-max), so new connections wait";
  if (free.open() && static_cast<uint64_t>(free.get()) < limit.rlim_cur - kept) return "";
  return absl::StrCat("out of file descriptors: all but ", kept, " of ", limit.rlim_cur,
                      " are in use, so new connections wait; close idle ones, or raise the "
                      "process's limit (ulimit -n)");
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_DESCRIPTORS_H_
