#include "worker/data/random_access_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

absl::Status SystemError(absl::string_view what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RandomAccessFile>> RandomAccessFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
  if (fd < 0) return SystemError("open", path);
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file"));
  }
  return std::unique_ptr<RandomAccessFile>(
      new RandomAccessFile(path, fd, static_cast<uint64_t>(info.st_size)));
}

RandomAccessFile::~RandomAccessFile() { Close(); }

void RandomAccessFile::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::Status RandomAccessFile::Keep() {
  if (is_kept_) return absl::OkStatus();
  std::vector<uint8_t> all(bytes_);
  STARLING_RETURN_IF_ERROR(ReadAt(0, absl::MakeSpan(all)));
  kept_ = std::move(all);
  is_kept_ = true;
  Close();
  return absl::OkStatus();
}

std::optional<absl::Span<const uint8_t>> RandomAccessFile::Kept(uint64_t offset,
                                                                uint64_t bytes) const {
  if (!is_kept_ || offset > kept_.size() || bytes > kept_.size() - offset) return std::nullopt;
  return absl::MakeConstSpan(kept_).subspan(offset, bytes);
}

absl::Status RandomAccessFile::Truncated(uint64_t offset, size_t expected, size_t got) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": truncated: expected ", expected,
                                                 " bytes from byte ", offset, " on, got ", got));
}

absl::Status RandomAccessFile::ReadAt(uint64_t offset, absl::Span<uint8_t> out) const {
  if (is_kept_) {
    const auto kept = Kept(offset, out.size());
    if (!kept) {
      return Truncated(offset, out.size(), kept_.size() - std::min<uint64_t>(offset, kept_.size()));
    }
    std::copy(kept->begin(), kept->end(), out.begin());
    return absl::OkStatus();
  }
  size_t got = 0;
  while (got < out.size()) {
    const ssize_t n =
        pread(fd_, out.data() + got, out.size() - got, static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError("read", path_);
    if (n == 0) return Truncated(offset, out.size(), got);
    got += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace starling
