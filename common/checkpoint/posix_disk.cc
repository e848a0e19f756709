#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/beneath.h"
#include "common/base/files.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/disk.h"

namespace starling {
namespace {

class PosixWritable : public CheckpointDisk::Writable {
 public:
  PosixWritable(OwnedFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status Append(absl::string_view bytes) override {
    return WriteAll(fd_.get(), bytes, path_);
  }
  absl::Status Sync() override {
    return fsync(fd_.get()) == 0 ? absl::OkStatus() : SystemError("sync", path_);
  }

 private:
  const OwnedFd fd_;
  const std::string path_;
};

class PosixReadable : public CheckpointDisk::Readable {
 public:
  PosixReadable(OwnedFd fd, uint64_t bytes, std::string path)
      : fd_(std::move(fd)), bytes_(bytes), path_(std::move(path)) {}

  uint64_t bytes() const override { return bytes_; }
  absl::Status ReadAt(uint64_t offset, absl::Span<uint8_t> out) const override {
    return ReadWithin(fd_.get(), offset, out, path_);
  }

 private:
  const OwnedFd fd_;
  const uint64_t bytes_;
  const std::string path_;
};

// As SystemError, of one entry: what is not of the disk, but of the entry, has its own codes.
absl::Status EntryError(absl::string_view doing, const std::string& path) {
  const int error = errno;
  const absl::Status status = SystemError(doing, path);
  if (error == ELOOP || error == ENXIO) return absl::InvalidArgumentError(status.message());
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(status.message());
  return status;
}

// BeneathRoot's errors in the disk's codes.
template <typename T>
absl::StatusOr<T> FromBeneath(absl::StatusOr<T> result) {
  if (!absl::IsFailedPrecondition(result.status())) return result;
  return absl::UnavailableError(result.status().message());
}

absl::StatusOr<BeneathRoot> OpenRoot(const std::string& root) {
  return FromBeneath(BeneathRoot::Open(root));
}

class PosixDisk : public CheckpointDisk {
 public:
  explicit PosixDisk(std::string root) : root_(std::move(root)) {}

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    STARLING_ASSIGN_OR_RETURN(OwnedFd fd, OpenFolder(folder));
    DIR* const listing = fdopendir(fd.get());
    if (listing == nullptr) return SystemError("list", Path(folder));
    (void)fd.Release();  // closed with the listing
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* const entry = readdir(listing)) {
      const absl::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const absl::Status status = errno == 0 ? absl::OkStatus() : SystemError("list", Path(folder));
    closedir(listing);
    if (!status.ok()) return status;
    return names;
  }

  absl::Status MakeFolder(const std::string& folder) override {
    STARLING_RETURN_IF_ERROR(CheckDiskName(folder));
    STARLING_ASSIGN_OR_RETURN(const OwnedFd root, OpenFolder(""));
    if (mkdirat(root.get(), folder.c_str(), 0777) == 0) return absl::OkStatus();
    if (errno != EEXIST) return SystemError("make the folder", Path(folder));
    return absl::AlreadyExistsError(absl::StrCat(Path(folder), " is there already"));
  }

  absl::StatusOr<std::unique_ptr<Writable>> Create(const std::string& folder,
                                                   const std::string& name) override {
    STARLING_RETURN_IF_ERROR(CheckDiskName(folder));
    STARLING_RETURN_IF_ERROR(CheckDiskName(name));
    STARLING_ASSIGN_OR_RETURN(const OwnedFd in, OpenFolder(folder));
    unlinkat(in.get(), name.c_str(), 0);
    OwnedFd fd(openat(in.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.open()) return SystemError("create", Path(folder, name));
    return std::make_unique<PosixWritable>(std::move(fd), Path(folder, name));
  }

  absl::StatusOr<std::unique_ptr<Readable>> Open(const std::string& folder, const std::string& name,
                                                 bool from_disk) override {
    STARLING_RETURN_IF_ERROR(CheckDiskName(folder));
    STARLING_RETURN_IF_ERROR(CheckDiskName(name));
    STARLING_ASSIGN_OR_RETURN(const OwnedFd in, OpenFolder(folder));
    // O_NONBLOCK: opening a pipe must not block.
    OwnedFd fd(openat(in.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat info = {};
    if (!fd.open() || fstat(fd.get(), &info) != 0) return EntryError("open", Path(folder, name));
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Path(folder, name), ": expected a regular file"));
    }
    if (from_disk) (void)posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    return std::make_unique<PosixReadable>(std::move(fd), static_cast<uint64_t>(info.st_size),
                                           Path(folder, name));
  }

  absl::Status Rename(const std::string& folder, const std::string& from,
                      const std::string& to) override {
    STARLING_RETURN_IF_ERROR(CheckDiskName(from));
    STARLING_RETURN_IF_ERROR(CheckDiskName(to));
    STARLING_ASSIGN_OR_RETURN(const OwnedFd in, OpenFolder(folder));
    if (renameat(in.get(), from.c_str(), in.get(), to.c_str()) == 0) return absl::OkStatus();
    return SystemError("rename", absl::StrCat(Path(folder, from), " to ", to));
  }

  absl::Status Remove(const std::string& folder, const std::string& name) override {
    STARLING_RETURN_IF_ERROR(CheckDiskName(name));
    STARLING_ASSIGN_OR_RETURN(const OwnedFd in, OpenFolder(folder));
    if (unlinkat(in.get(), name.c_str(), folder.empty() ? AT_REMOVEDIR : 0) == 0)
      return absl::OkStatus();
    if (errno == ENOTDIR && unlinkat(in.get(), name.c_str(), 0) == 0) return absl::OkStatus();
    return SystemError("remove", Path(folder, name));
  }

  absl::Status SyncFolder(const std::string& folder) override {
    STARLING_ASSIGN_OR_RETURN(const OwnedFd fd, OpenFolder(folder));
    return fsync(fd.get()) == 0 ? absl::OkStatus() : SystemError("sync", Path(folder));
  }

 private:
  std::string Path(const std::string& folder, const std::string& name = "") const {
    return absl::StrCat(root_, folder.empty() ? "" : "/", folder, name.empty() ? "" : "/", name);
  }

  absl::StatusOr<OwnedFd> OpenFolder(const std::string& folder) const {
    if (!folder.empty()) STARLING_RETURN_IF_ERROR(CheckDiskName(folder));
    STARLING_ASSIGN_OR_RETURN(const BeneathRoot root, OpenRoot(root_));
    return FromBeneath(root.OpenFolder(folder.empty() ? "." : folder, /*make=*/false));
  }

  const std::string root_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointDisk>> OpenCheckpointDisk(const std::string& root) {
  STARLING_RETURN_IF_ERROR(OpenRoot(root).status());
  return std::make_unique<PosixDisk>(root);
}

}  // namespace starling
