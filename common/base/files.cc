#include "common/base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

// Creates a file with `mode`, or with what the umask leaves of 0666. Not open: errno says why.
OwnedFd CreateIn(const OwnedFd& folder, const std::string& name, std::optional<mode_t> mode) {
  return OwnedFd(openat(folder.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                        mode.value_or(0666)));
}

std::optional<mode_t> ModeOf(const struct stat& info, bool there) {
  return there ? std::optional<mode_t>(info.st_mode & 0777) : std::nullopt;
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
  while (const dirent* const entry = readdir(listing)) {
    const absl::string_view name = entry->d_name;
    entries += name != "." && name != "..";
  }
  closedir(listing);
  return entries;
}

FileReplacement::FileReplacement(OwnedFd folder, std::string shown, std::string name,
                                 std::string temporary, std::optional<mode_t> mode, OwnedFd file)
    : folder_(std::move(folder)),
      shown_(std::move(shown)),
      name_(std::move(name)),
      temporary_(std::move(temporary)),
      mode_(mode),
      file_(std::move(file)) {}

FileReplacement::~FileReplacement() {
  if (file_.open() && folder_.open()) unlinkat(folder_.get(), temporary_.c_str(), 0);
}

absl::StatusOr<FileReplacement> FileReplacement::Begin(const std::string& path) {
  static std::atomic<uint64_t> next{0};
  std::error_code missing;
  const std::string resolved = std::filesystem::canonical(path, missing).string();
  const std::string target = missing ? path : resolved;
  struct stat old = {};
  const bool there = stat(target.c_str(), &old) == 0;
  if (target.empty()) {
    return absl::InvalidArgumentError("expected the name of a file to write, got an empty one");
  }
  if (target.ends_with('/') || (there && S_ISDIR(old.st_mode))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected the name of a file to write, got the folder ", path, ": name a file in it"));
  }
  if (there && !S_ISREG(old.st_mode)) {
    OwnedFd file(open(target.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file.open()) return SystemError("open", path);
    return FileReplacement(OwnedFd(), path, "", "", std::nullopt, std::move(file));
  }
  const size_t name_begin = target.rfind('/') + 1;  // npos + 1 is 0
  const std::string name = target.substr(name_begin);
  const std::string folder_path = name_begin == 0 ? "." : target.substr(0, name_begin);
  OwnedFd folder(open(folder_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.open()) return SystemError("create a file beside", path);
  const std::optional<mode_t> mode = ModeOf(old, there);
  for (;;) {
    std::string temporary = absl::StrCat(name, ".", getpid(), ".", next++);
    OwnedFd file = CreateIn(folder, temporary, mode);
    if (file.open()) {
      return FileReplacement(std::move(folder), path, name, std::move(temporary), mode,
                             std::move(file));
    }
    if (errno != EEXIST) return SystemError("create a file beside", path);
  }
}

absl::StatusOr<FileReplacement> FileReplacement::BeginIn(OwnedFd folder, const std::string& name,
                                                         const std::string& shown) {
  struct stat old = {};
  const bool there = fstatat(folder.get(), name.c_str(), &old, AT_SYMLINK_NOFOLLOW) == 0;
  if (there && !S_ISREG(old.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(shown, " is there, and is no regular file: it is not replaced"));
  }
  std::string temporary = absl::StrCat(name, ".partial");
  unlinkat(folder.get(), temporary.c_str(), 0);
  const std::optional<mode_t> mode = ModeOf(old, there);
  OwnedFd file = CreateIn(folder, temporary, mode);
  if (!file.open()) return SystemError("create a file beside", shown);
  return FileReplacement(std::move(folder), shown, name, std::move(temporary), mode,
                         std::move(file));
}

absl::Status FileReplacement::Write(absl::string_view bytes) {
  return WriteAll(file_.get(), bytes, shown_);
}

absl::Status FileReplacement::Commit() {
  if (!folder_.open()) {
    file_.Reset();
    return absl::OkStatus();
  }
  if ((mode_.has_value() && fchmod(file_.get(), *mode_) != 0) || fsync(file_.get()) != 0 ||
      renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()) != 0) {
    return SystemError("write", shown_);
  }
  file_.Reset();
  return fsync(folder_.get()) == 0 ? absl::OkStatus() : SystemError("sync the folder of", shown_);
}

absl::Status ReplaceFile(const std::string& path, std::initializer_list<absl::string_view> parts) {
  STARLING_ASSIGN_OR_RETURN(FileReplacement file, FileReplacement::Begin(path));
  for (const absl::string_view part : parts) STARLING_RETURN_IF_ERROR(file.Write(part));
  return file.Commit();
}

}  // namespace starling
