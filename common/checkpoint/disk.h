// What checkpoints need of a file system: one level of folders beneath a root. The real one is a
// local path or a shared mount; testing/memory_disk.h is the other.
#ifndef STARLING_COMMON_CHECKPOINT_DISK_H_
#define STARLING_COMMON_CHECKPOINT_DISK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace starling {

// Thread-safe. Calls block as the file system does. `folder` is the name of a folder beneath the
// root; "": the root, in which files are neither made nor opened. Names are not empty and have no
// '/' (kInvalidArgument, as for a folder that is a link or a file), and no link is followed. Errors
// name the path: kResourceExhausted: no space; kNotFound; kPermissionDenied: a folder, or a file
// that is opened, not the root; kUnavailable: the rest.
class CheckpointDisk {
 public:
  // A file that is being written. Nothing of it is durable until Sync. Not thread-safe.
  class Writable {
   public:
    virtual ~Writable() = default;
    // After an error a part of `bytes` may be there.
    virtual absl::Status Append(absl::string_view bytes) = 0;
    virtual absl::Status Sync() = 0;
  };

  // An open file, which stays readable if it is renamed or removed. Thread-safe.
  class Readable {
   public:
    virtual ~Readable() = default;
    virtual uint64_t bytes() const = 0;  // when it was opened
    // Fills `out`, which ends within bytes(). kDataLoss: the file has become shorter.
    virtual absl::Status ReadAt(uint64_t offset, absl::Span<uint8_t> out) const = 0;
  };

  virtual ~CheckpointDisk() = default;

  // The names of files and folders there, in any order.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
  // Makes a folder beneath the root. kAlreadyExists.
  virtual absl::Status MakeFolder(const std::string& folder) = 0;
  // A new file, empty; one that has the name is removed. Makes no folders.
  virtual absl::StatusOr<std::unique_ptr<Writable>> Create(const std::string& folder,
                                                           const std::string& name) = 0;
  // kInvalidArgument also for what is no regular file. `from_disk`: drops cached pages first, where
  // the system allows it, so that what is read is what was stored.
  virtual absl::StatusOr<std::unique_ptr<Readable>> Open(const std::string& folder,
                                                         const std::string& name,
                                                         bool from_disk = false) = 0;
  // A file that has the name `to` is replaced; a folder only if it is empty.
  virtual absl::Status Rename(const std::string& folder, const std::string& from,
                              const std::string& to) = 0;
  // A file of `folder`; or of the root an empty folder, a link or a file.
  virtual absl::Status Remove(const std::string& folder, const std::string& name) = 0;
  // Makes the names in it durable: those that are there, and that others are not.
  virtual absl::Status SyncFolder(const std::string& folder) = 0;
};

// The folder `root`, which may be or contain a link. It is opened for each call, so a mount may
// come and go. kUnavailable: it is not there, or no folder.
absl::StatusOr<std::unique_ptr<CheckpointDisk>> OpenCheckpointDisk(const std::string& root);

// For implementations. kInvalidArgument: no name of a file or folder.
absl::Status CheckDiskName(absl::string_view name);

// The whole file. kDataLoss: it has more than `bytes_max`.
absl::StatusOr<std::string> ReadWholeFile(CheckpointDisk& disk, const std::string& folder,
                                          const std::string& name, uint64_t bytes_max,
                                          bool from_disk = false);
// Writes the file so that it has all of `bytes` or does not have that name: NAME.partial, which is
// synced and renamed, and the folder synced. After an error NAME.partial is removed if it can be.
absl::Status WriteWholeFile(CheckpointDisk& disk, const std::string& folder,
                            const std::string& name, absl::string_view bytes);

}  // namespace starling

#endif  // STARLING_COMMON_CHECKPOINT_DISK_H_
