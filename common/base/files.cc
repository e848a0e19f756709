#include "common/base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

// Creates a file of what the umask leaves of `mode`. -1: errno says why.
int CreateBeside(const std::string& path, mode_t mode, std::string* name) {
  static std::atomic<uint64_t> next{0};
  for (;;) {
    *name = absl::StrCat(path, ".", getpid(), ".", next++);
    const int fd = open(name->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
}

}  // namespace

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

absl::StatusOr<std::string> ReadText(const std::string& path) {
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open()) return SystemError("open", path);
  std::string text;
  std::array<char, 1 << 14> buffer;
  for (;;) {
    const ssize_t count = read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("read", path);
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
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

uint64_t CountEntries(const char* folder) {
  DIR* const listing = opendir(folder);
  if (listing == nullptr) return 0;
  uint64_t entries = 0;
  while (readdir(listing) != nullptr) ++entries;
  closedir(listing);
  return entries - 2;
}

bool IsSpecialFile(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

absl::Status ReplaceFile(const std::string& path, std::initializer_list<absl::string_view> parts) {
  std::error_code missing;
  const std::string resolved = std::filesystem::canonical(path, missing).string();
  const std::string target = missing ? path : resolved;
  const bool in_place = IsSpecialFile(target);
  struct stat old = {};
  const bool replaces = stat(target.c_str(), &old) == 0;
  const mode_t mode = replaces ? old.st_mode & 07777 : 0666;
  std::string temporary;
  const OwnedFd file(in_place ? open(target.c_str(), O_WRONLY | O_CLOEXEC)
                              : CreateBeside(target, mode, &temporary));
  if (!file.open()) return SystemError(in_place ? "open" : "create a file beside", path);
  absl::Status status;
  for (const absl::string_view part : parts) status.Update(WriteAll(file.get(), part, path));
  if (in_place) return status;
  if (status.ok() && ((replaces && fchmod(file.get(), mode) != 0) || fsync(file.get()) != 0 ||
                      rename(temporary.c_str(), target.c_str()) != 0)) {
    status = SystemError("write", path);
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace starling
