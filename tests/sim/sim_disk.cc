#include "tests/sim/sim_disk.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/names.h"

namespace starling::sim {
namespace {

enum class Does { kReads, kWrites };

// Nobody reads back a nonce: a damaged one is another number.
double DamageOf(const std::string& name, const DiskFaults& faults) {
  if (absl::StartsWith(name, "shard-")) return faults.file_damage;
  return absl::StartsWith(name, kManifestFile) ? faults.manifest_damage : 0;
}

}  // namespace

class SimDisk::Mounted final : public CheckpointDisk,
                               public std::enable_shared_from_this<SimDisk::Mounted> {
 public:
  Mounted(SimDisk* disk, Process* process, bool shard, std::function<void()> die)
      : disk_(disk), process_(process), life_(process->life), shard_(shard), die_(std::move(die)) {}

  // Takes the operation's time, in which others go on.
  absl::Status Begin(Does does, const std::string& appends_to = "") {
    World& world = *disk_->world_;
    const bool counts = alive() && disk_->kill_at_ >= 0 && disk_->kills_shards_ == shard_;
    if (counts && disk_->kill_at_-- == 0) {
      ++process_->sleeping;  // this is one of its threads
      die_();
      --process_->sleeping;
    }
    if (!alive()) return Dead();
    world.Trace(disk_->stored_->operations(), Mix(shard_ ? 1 : 2, static_cast<uint64_t>(does)));
    const bool slow = world.Draw(shard_ ? "slow disk of a shard" : "slow disk of the coordinator",
                                 disk_->faults_.slow, process_->name);
    const bool slept =
        world.Sleep(slow ? world.random().Between(absl::Milliseconds(50), absl::Seconds(3))
                         : world.random().Between(absl::ZeroDuration(), absl::Milliseconds(2)),
                    process_);
    world.Count(slept ? "operations of the disk that took time"
                      : "operations of the disk that took no time");
    if (!alive()) return Dead();
    if (unmounted()) return absl::OkStatus();
    const DiskFaults& faults = disk_->faults_;
    DiskFault fault = DiskFault::kNone;
    if (world.Draw(shard_ ? "disk error of a shard" : "disk error of the coordinator",
                   faults.io_error, process_->name)) {
      fault = DiskFault::kIoError;
    } else if (does != Does::kReads &&
               world.Draw(shard_ ? "disk full for a shard" : "disk full for the coordinator",
                          faults.no_space, process_->name)) {
      fault = DiskFault::kNoSpace;
    } else if (world.Draw("damaged block", DamageOf(appends_to, faults), process_->name)) {
      fault = world.random().Chance(0.5) ? DiskFault::kFlipBit : DiskFault::kDropHalf;
    }
    if (fault != DiskFault::kNone) disk_->stored_->FaultAt(disk_->stored_->operations(), fault);
    return absl::OkStatus();
  }

  // Begins, and does it. A fault that it did not meet is gone.
  template <typename F>
  auto Do(Does does, const F& operation, const std::string& appends_to = "")
      -> decltype(operation()) {
    STARLING_RETURN_IF_ERROR(Begin(does, appends_to));
    auto result = operation();
    disk_->stored_->FaultAt(0, DiskFault::kNone);
    return result;
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return Do(Does::kReads, [&] { return there().List(folder); });
  }
  absl::Status MakeFolder(const std::string& folder) override {
    return Do(Does::kWrites, [&] { return there().MakeFolder(folder); });
  }
  absl::StatusOr<std::unique_ptr<Writable>> Create(const std::string& folder,
                                                   const std::string& name) override;
  absl::StatusOr<std::unique_ptr<Readable>> Open(const std::string& folder, const std::string& name,
                                                 bool from_disk) override;
  absl::Status Rename(const std::string& folder, const std::string& from,
                      const std::string& to) override {
    const absl::Status status = Do(Does::kWrites, [&] { return there().Rename(folder, from, to); });
    if (status.ok() && folder.empty()) disk_->observer_->OnRenamed(from, to);
    return status;
  }
  absl::Status Remove(const std::string& folder, const std::string& name) override {
    const absl::Status status = Do(Does::kWrites, [&] { return there().Remove(folder, name); });
    if (status.ok() && !folder.empty()) disk_->observer_->OnRemoved(folder);
    return status;
  }
  absl::Status SyncFolder(const std::string& folder) override {
    return Do(Does::kWrites, [&] { return there().SyncFolder(folder); });
  }

 private:
  bool alive() const { return process_->alive && process_->life == life_; }
  bool unmounted() const {
    return disk_->unmounted_ == process_ && disk_->world_->now() < disk_->unmounted_until_;
  }
  MemoryDisk& there() { return unmounted() ? disk_->empty_ : *disk_->stored_; }
  absl::Status Dead() const {
    return absl::UnavailableError(absl::StrCat(process_->name, " has died"));
  }

  SimDisk* const disk_;
  Process* const process_;
  const uint32_t life_;
  const bool shard_;
  const std::function<void()> die_;
};

class SimDisk::OpenFile final : public CheckpointDisk::Writable, public CheckpointDisk::Readable {
 public:
  OpenFile(std::shared_ptr<Mounted> mounted, std::unique_ptr<Writable> writes,
           std::unique_ptr<Readable> reads, std::string name)
      : mounted_(std::move(mounted)),
        writes_(std::move(writes)),
        reads_(std::move(reads)),
        name_(std::move(name)) {}

  absl::Status Append(absl::string_view bytes) override {
    return mounted_->Do(
        Does::kWrites, [&] { return writes_->Append(bytes); }, name_);
  }
  absl::Status Sync() override {
    return mounted_->Do(Does::kWrites, [&] { return writes_->Sync(); });
  }
  uint64_t bytes() const override { return reads_->bytes(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<uint8_t> out) const override {
    return mounted_->Do(Does::kReads, [&] { return reads_->ReadAt(offset, out); });
  }

 private:
  const std::shared_ptr<Mounted> mounted_;
  const std::unique_ptr<Writable> writes_;
  const std::unique_ptr<Readable> reads_;
  const std::string name_;
};

absl::StatusOr<std::unique_ptr<CheckpointDisk::Writable>> SimDisk::Mounted::Create(
    const std::string& folder, const std::string& name) {
  STARLING_ASSIGN_OR_RETURN(auto file,
                            Do(Does::kWrites, [&] { return there().Create(folder, name); }));
  return std::make_unique<OpenFile>(shared_from_this(), std::move(file), nullptr, name);
}

absl::StatusOr<std::unique_ptr<CheckpointDisk::Readable>> SimDisk::Mounted::Open(
    const std::string& folder, const std::string& name, bool from_disk) {
  STARLING_ASSIGN_OR_RETURN(
      auto file, Do(Does::kReads, [&] { return there().Open(folder, name, from_disk); }));
  return std::make_unique<OpenFile>(shared_from_this(), nullptr, std::move(file), name);
}

std::shared_ptr<CheckpointDisk> SimDisk::Mount(Process* process, bool shard,
                                               std::function<void()> die) {
  return std::make_shared<Mounted>(this, process, shard, std::move(die));
}

void SimDisk::Restart(Random& random) {
  stored_->Restart(
      {.data = random.Chance(0.3), .files = random.Chance(0.3), .folders = random.Chance(0.3)});
}

void SimDisk::Unmount(const Process* process, absl::Time until) {
  unmounted_ = process;
  unmounted_until_ = until;
}

}  // namespace starling::sim
