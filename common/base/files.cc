#include "common/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {

absl::Status SystemError(absl::string_view doing, absl::string_view path) {
  const int error = errno;
  const std::string text = absl::StrCat("cannot ", doing, " ", path, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

absl::StatusOr<RegularFile> OpenRegularFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not block.
  RegularFile file{OwnedFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))};
  struct stat info = {};
  if (!file.fd.open() || fstat(file.fd.get(), &info) != 0) return SystemError("open", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file"));
  }
  file.bytes = static_cast<uint64_t>(info.st_size);
  return file;
}

absl::StatusOr<size_t> ReadFileAt(int fd, uint64_t offset, absl::Span<uint8_t> out,
                                  const std::string& path) {
  size_t got = 0;
  while (got < out.size()) {
    const ssize_t count =
        pread(fd, out.data() + got, out.size() - got, static_cast<off_t>(offset + got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("read", path);
    if (count == 0) break;
    got += static_cast<size_t>(count);
  }
  return got;
}

absl::Status ReadWithin(int fd, uint64_t offset, absl::Span<uint8_t> out, const std::string& path) {
  STARLING_ASSIGN_OR_RETURN(const size_t got, ReadFileAt(fd, offset, out, path));
  if (got == out.size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": became shorter while it was read"));
}

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("write", path);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

bool IsSpecialFile(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

}  // namespace starling
