#include "common/checkpoint/testing/memory_disk.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

absl::Status NotThere(absl::string_view doing, const std::string& path) {
  return absl::NotFoundError(
      absl::StrCat("cannot ", doing, " ", path, ": No such file or directory"));
}

std::string PathOf(const std::string& folder, const std::string& name = "") {
  return absl::StrCat("memory:/", folder, name.empty() || folder.empty() ? "" : "/", name);
}

// A file of `from` becomes one of `to`, or nothing happens.
template <typename Map>
bool MoveName(Map& names, const std::string& from, const std::string& to) {
  const auto it = names.find(from);
  if (it == names.end()) return false;
  const auto moved = it->second;
  names.erase(it);
  names[to] = moved;
  return true;
}

}  // namespace

class MemoryDisk::OpenFile : public Writable, public Readable {
 public:
  OpenFile(MemoryDisk* disk, std::shared_ptr<File> file, std::string path, uint64_t bytes,
           uint64_t start)
      : disk_(*disk),
        file_(std::move(file)),
        path_(std::move(path)),
        bytes_(bytes),
        start_(start) {}

  absl::Status Append(absl::string_view bytes) override {
    MutexLock lock(&disk_.mutex_);
    DiskFault fault = DiskFault::kNone;
    const absl::Status status = Begin("write", &fault);
    if (disk_.starts_ != start_) return status;
    const bool half = fault != DiskFault::kNone && fault != DiskFault::kFlipBit;
    absl::StrAppend(&file_->stored, half ? bytes.substr(0, bytes.size() / 2) : bytes);
    if (fault == DiskFault::kFlipBit && !bytes.empty())
      file_->stored[file_->stored.size() - 1 - bytes.size() / 2] ^= 4;
    absl::StrAppend(&file_->cached, status.ok() ? bytes : bytes.substr(0, bytes.size() / 2));
    return status;
  }

  absl::Status Sync() override {
    MutexLock lock(&disk_.mutex_);
    STARLING_RETURN_IF_ERROR(Begin("sync"));
    file_->synced = file_->stored.size();
    return absl::OkStatus();
  }

  uint64_t bytes() const override { return bytes_; }

  absl::Status ReadAt(uint64_t offset, absl::Span<uint8_t> out) const override {
    MutexLock lock(&disk_.mutex_);
    STARLING_RETURN_IF_ERROR(Begin("read"));
    if (offset > file_->cached.size() || out.size() > file_->cached.size() - offset)
      return absl::DataLossError(absl::StrCat(path_, ": became shorter while it was read"));
    if (!out.empty()) std::memcpy(out.data(), file_->cached.data() + offset, out.size());
    return absl::OkStatus();
  }

 private:
  absl::Status Begin(absl::string_view doing, DiskFault* fault = nullptr) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_.mutex_) {
    const absl::Status status = disk_.Begin(doing, path_, fault);
    if (disk_.starts_ == start_) return status;
    return absl::UnavailableError(absl::StrCat("cannot ", doing, " ", path_, ": not open"));
  }

  MemoryDisk& disk_;
  const std::shared_ptr<File> file_;
  const std::string path_;
  const uint64_t bytes_;
  const uint64_t start_;
};

uint64_t MemoryDisk::operations() const {
  MutexLock lock(&mutex_);
  return operations_;
}

void MemoryDisk::FaultAt(uint64_t at, DiskFault fault) {
  MutexLock lock(&mutex_);
  fault_at_ = at;
  fault_ = fault;
}

void MemoryDisk::Restart(const Survives& survives) {
  MutexLock lock(&mutex_);
  Crash(survives);
}

void MemoryDisk::Crash(const Survives& survives) {
  if (!survives.folders) root_.now = root_.synced;
  root_.synced = root_.now;
  for (const auto& [name, folder] : root_.now) {
    if (!survives.files) folder->now = folder->synced;
    folder->synced = folder->now;
    for (const auto& [file_name, file] : folder->now) {
      if (!survives.data) file->stored.resize(std::min(file->stored.size(), file->synced));
      file->synced = file->stored.size();
      file->cached = file->stored;
    }
  }
  down_ = false;
  fault_ = DiskFault::kNone;
  ++starts_;
}

std::shared_ptr<MemoryDisk> MemoryDisk::AfterCrash(const Survives& survives) const {
  const auto copy = std::make_shared<MemoryDisk>();
  MemoryDisk& to = *copy;
  MutexLock lock(&mutex_);
  MutexLock other(&to.mutex_);
  std::map<const void*, std::shared_ptr<File>> files;  // what has two names stays one file
  std::map<const void*, std::shared_ptr<Folder>> folders;
  const auto copy_files = [&](const std::map<std::string, std::shared_ptr<File>>& names) {
    std::map<std::string, std::shared_ptr<File>> copied;
    for (const auto& [name, file] : names) {
      std::shared_ptr<File>& known = files[file.get()];
      if (known == nullptr) known = std::make_shared<File>(*file);
      copied[name] = known;
    }
    return copied;
  };
  const auto copy_folders = [&](const std::map<std::string, std::shared_ptr<Folder>>& names) {
    std::map<std::string, std::shared_ptr<Folder>> copied;
    for (const auto& [name, folder] : names) {
      std::shared_ptr<Folder>& known = folders[folder.get()];
      if (known == nullptr) {
        known = std::make_shared<Folder>();
        known->now = copy_files(folder->now);
        known->synced = copy_files(folder->synced);
      }
      copied[name] = known;
    }
    return copied;
  };
  to.root_.now = copy_folders(root_.now);
  to.root_.synced = copy_folders(root_.synced);
  to.Crash(survives);
  return copy;
}

absl::StatusOr<std::string> MemoryDisk::Get(const std::string& folder,
                                            const std::string& name) const {
  MutexLock lock(&mutex_);
  const auto in = root_.now.find(folder);
  if (in == root_.now.end()) return NotThere("get", PathOf(folder));
  const auto it = in->second->now.find(name);
  if (it == in->second->now.end()) return NotThere("get", PathOf(folder, name));
  return it->second->stored;
}

void MemoryDisk::Put(const std::string& folder, const std::string& name, absl::string_view bytes) {
  MutexLock lock(&mutex_);
  std::shared_ptr<Folder>& in = root_.now[folder];
  if (in == nullptr) in = std::make_shared<Folder>();
  root_.synced[folder] = in;
  const auto file = std::make_shared<File>();
  file->cached = file->stored = std::string(bytes);
  file->synced = bytes.size();
  in->now[name] = in->synced[name] = file;
}

absl::Status MemoryDisk::Begin(absl::string_view doing, const std::string& path, DiskFault* fault) {
  const auto error = [&](absl::string_view why) {
    return absl::StrCat("cannot ", doing, " ", path, ": ", why);
  };
  const uint64_t operation = operations_++;
  if (down_) return absl::UnavailableError(error("the machine is down"));
  if (fault_ == DiskFault::kNone || operation < fault_at_) return absl::OkStatus();
  const bool quiet = fault_ == DiskFault::kFlipBit || fault_ == DiskFault::kDropHalf;
  if (quiet && fault == nullptr) return absl::OkStatus();  // for the next Append
  const DiskFault now = std::exchange(fault_, DiskFault::kNone);
  if (fault != nullptr) *fault = now;
  if (quiet) return absl::OkStatus();
  if (now == DiskFault::kNoSpace)
    return absl::ResourceExhaustedError(error("No space left on device"));
  if (now == DiskFault::kCrash) down_ = true;
  return absl::UnavailableError(error(down_ ? "the machine goes down" : "Input/output error"));
}

absl::StatusOr<MemoryDisk::Folder*> MemoryDisk::Find(const std::string& folder) {
  STARLING_RETURN_IF_ERROR(CheckDiskName(folder));
  const auto it = root_.now.find(folder);
  if (it == root_.now.end()) return NotThere("open", PathOf(folder));
  return it->second.get();
}

absl::StatusOr<std::vector<std::string>> MemoryDisk::List(const std::string& folder) {
  MutexLock lock(&mutex_);
  STARLING_RETURN_IF_ERROR(Begin("list", PathOf(folder)));
  std::vector<std::string> names;
  if (folder.empty()) {
    for (const auto& [name, unused] : root_.now) names.push_back(name);
    return names;
  }
  STARLING_ASSIGN_OR_RETURN(const Folder* const in, Find(folder));
  for (const auto& [name, unused] : in->now) names.push_back(name);
  return names;
}

absl::Status MemoryDisk::MakeFolder(const std::string& folder) {
  MutexLock lock(&mutex_);
  STARLING_RETURN_IF_ERROR(CheckDiskName(folder));
  STARLING_RETURN_IF_ERROR(Begin("make the folder", PathOf(folder)));
  if (root_.now.emplace(folder, std::make_shared<Folder>()).second) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(PathOf(folder), " is there already"));
}

absl::StatusOr<std::unique_ptr<CheckpointDisk::Writable>> MemoryDisk::Create(
    const std::string& folder, const std::string& name) {
  MutexLock lock(&mutex_);
  STARLING_RETURN_IF_ERROR(CheckDiskName(name));
  STARLING_ASSIGN_OR_RETURN(Folder* const in, Find(folder));
  STARLING_RETURN_IF_ERROR(Begin("create", PathOf(folder, name)));
  const auto file = std::make_shared<File>();
  in->now[name] = file;
  return std::make_unique<OpenFile>(this, file, PathOf(folder, name), 0, starts_);
}

absl::StatusOr<std::unique_ptr<CheckpointDisk::Readable>> MemoryDisk::Open(
    const std::string& folder, const std::string& name, bool from_disk) {
  MutexLock lock(&mutex_);
  STARLING_RETURN_IF_ERROR(CheckDiskName(name));
  STARLING_ASSIGN_OR_RETURN(Folder* const in, Find(folder));
  STARLING_RETURN_IF_ERROR(Begin("open", PathOf(folder, name)));
  const auto it = in->now.find(name);
  if (it == in->now.end()) return NotThere("open", PathOf(folder, name));
  File& file = *it->second;
  if (from_disk) file.cached = file.stored;
  return std::make_unique<OpenFile>(this, it->second, PathOf(folder, name), file.cached.size(),
                                    starts_);
}

absl::Status MemoryDisk::Rename(const std::string& folder, const std::string& from,
                                const std::string& to) {
  MutexLock lock(&mutex_);
  STARLING_RETURN_IF_ERROR(CheckDiskName(from));
  STARLING_RETURN_IF_ERROR(CheckDiskName(to));
  STARLING_RETURN_IF_ERROR(Begin("rename", PathOf(folder, from)));
  bool moved = false;
  if (folder.empty()) {
    const auto taken = root_.now.find(to);
    if (taken != root_.now.end() && !taken->second->now.empty() && root_.now.count(from) != 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot rename ", PathOf(from), " to ", to, ": Directory not empty"));
    }
    moved = MoveName(root_.now, from, to);
  } else {
    STARLING_ASSIGN_OR_RETURN(Folder* const in, Find(folder));
    moved = MoveName(in->now, from, to);
  }
  return moved ? absl::OkStatus() : NotThere("rename", PathOf(folder, from));
}

absl::Status MemoryDisk::Remove(const std::string& folder, const std::string& name) {
  MutexLock lock(&mutex_);
  STARLING_RETURN_IF_ERROR(CheckDiskName(name));
  STARLING_RETURN_IF_ERROR(Begin("remove", PathOf(folder, name)));
  if (!folder.empty()) {
    STARLING_ASSIGN_OR_RETURN(Folder* const in, Find(folder));
    return in->now.erase(name) != 0 ? absl::OkStatus() : NotThere("remove", PathOf(folder, name));
  }
  const auto it = root_.now.find(name);
  if (it == root_.now.end()) return NotThere("remove", PathOf(name));
  if (!it->second->now.empty()) {
    return absl::UnavailableError(
        absl::StrCat("cannot remove ", PathOf(name), ": Directory not empty"));
  }
  root_.now.erase(it);
  return absl::OkStatus();
}

absl::Status MemoryDisk::SyncFolder(const std::string& folder) {
  MutexLock lock(&mutex_);
  STARLING_RETURN_IF_ERROR(Begin("sync", PathOf(folder)));
  if (folder.empty()) {
    root_.synced = root_.now;
    return absl::OkStatus();
  }
  STARLING_ASSIGN_OR_RETURN(Folder* const in, Find(folder));
  in->synced = in->now;
  return absl::OkStatus();
}

}  // namespace starling
