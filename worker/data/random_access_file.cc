#include "worker/data/random_access_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace starling {
namespace {

absl::Status SystemError(absl::string_view what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RandomAccessFile>> RandomAccessFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block us
  if (fd < 0) return SystemError("open", path);
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file"));
  }
  return std::unique_ptr<RandomAccessFile>(
      new RandomAccessFile(path, fd, static_cast<uint64_t>(info.st_size)));
}

RandomAccessFile::~RandomAccessFile() { close(fd_); }

absl::Status RandomAccessFile::ReadAt(uint64_t offset, absl::Span<uint8_t> out) const {
  size_t got = 0;
  while (got < out.size()) {
    const ssize_t n =
        pread(fd_, out.data() + got, out.size() - got, static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError("read", path_);
    if (n == 0) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": truncated: expected ", out.size(),
                                                     " bytes from byte ", offset, " on, got ", got));
    }
    got += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace starling
