// A CheckpointDisk in memory that can lose what was not synced, fill up, fail and damage what it
// stores, at a chosen operation. For tests and the simulator.
#ifndef STARLING_COMMON_CHECKPOINT_TESTING_MEMORY_DISK_H_
#define STARLING_COMMON_CHECKPOINT_TESTING_MEMORY_DISK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/disk.h"
#include "common/sync/mutex.h"

namespace starling {

enum class DiskFault {
  kNone,
  kNoSpace,   // this operation fails with ENOSPC; an Append stores half of its bytes
  kIoError,   // this operation fails with EIO; an Append stores half of its bytes
  kCrash,     // this and all later operations fail, until Restart; an Append stores half
  kFlipBit,   // the next Append says ok and stores one bit differently
  kDropHalf,  // the next Append says ok and stores half of its bytes
};

// What of the unsynced state a crash leaves.
struct Survives {
  bool data = false;     // bytes that were appended
  bool files = false;    // that a file was made, renamed or removed
  bool folders = false;  // the same of a folder
};

// Thread-safe. Each call of the disk, of its Writables and of its Readables is one operation,
// except Readable::bytes. Reads return what was appended until a crash, or an Open with
// `from_disk`, shows what is stored. Its Writables and Readables do not outlive it.
class MemoryDisk : public CheckpointDisk {
 public:
  uint64_t operations() const;
  // Operation `at`, counted from 0, has this fault; one fault at a time.
  void FaultAt(uint64_t at, DiskFault fault);
  // The machine starts again: files that were open are not. A crash may have come before.
  void Restart(const Survives& survives);
  // Another disk, with what this one would have after a crash now. This one goes on.
  std::shared_ptr<MemoryDisk> AfterCrash(const Survives& survives) const;

  // A file as it is stored, and a new content of it, which is durable; the folder is made.
  absl::StatusOr<std::string> Get(const std::string& folder, const std::string& name) const;
  void Put(const std::string& folder, const std::string& name, absl::string_view bytes);

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;
  absl::Status MakeFolder(const std::string& folder) override;
  absl::StatusOr<std::unique_ptr<Writable>> Create(const std::string& folder,
                                                   const std::string& name) override;
  absl::StatusOr<std::unique_ptr<Readable>> Open(const std::string& folder, const std::string& name,
                                                 bool from_disk = false) override;
  absl::Status Rename(const std::string& folder, const std::string& from,
                      const std::string& to) override;
  absl::Status Remove(const std::string& folder, const std::string& name) override;
  absl::Status SyncFolder(const std::string& folder) override;

 private:
  class OpenFile;
  struct File {
    std::string cached;  // what reads see
    std::string stored;
    size_t synced = 0;  // bytes of `stored` that a crash leaves
  };
  // What has names: the root's are of folders, a folder's are of files.
  template <typename T>
  struct Names {
    std::map<std::string, std::shared_ptr<T>> now, synced;
  };
  using Folder = Names<File>;

  // One more operation. Its own fault, or ok: `fault` then says what happens to an Append.
  absl::Status Begin(absl::string_view doing, const std::string& path, DiskFault* fault = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Crash(const Survives& survives) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Folder*> Find(const std::string& folder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  Names<Folder> root_ ABSL_GUARDED_BY(mutex_);
  uint64_t operations_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t fault_at_ ABSL_GUARDED_BY(mutex_) = 0;
  DiskFault fault_ ABSL_GUARDED_BY(mutex_) = DiskFault::kNone;
  bool down_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t starts_ ABSL_GUARDED_BY(mutex_) = 0;  // a file of an earlier one is not open any more
};

}  // namespace starling

#endif  // STARLING_COMMON_CHECKPOINT_TESTING_MEMORY_DISK_H_
