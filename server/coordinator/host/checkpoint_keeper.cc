#include "server/coordinator/host/checkpoint_keeper.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/names.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/store.h"

namespace starling::coordinator {
namespace {

absl::StatusOr<CheckpointInfo> SealOn(CheckpointDisk& disk, const action::SealCheckpoint& action) {
  STARLING_RETURN_IF_ERROR(SealCheckpoint(disk, action.id, action.manifest).status());
  return DescribeCheckpoint(action.manifest, EncodeManifest(action.manifest));
}

// A mount that is gone leaves an empty folder, in which no checkpoint is missed.
absl::Status CheckSameRoot(CheckpointDisk& disk, const action::ListCheckpoints& action) {
  const absl::StatusOr<uint64_t> found = ReadRootNonce(disk, action.cluster);
  if (found.ok() && *found == action.nonce) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      kRootNonceFolder, "/", ToHex(action.cluster), ": expected ", ToHex(action.nonce), ", got ",
      found.ok() ? ToHex(*found) : std::string(found.status().message()),
      ": see whether the folder is still mounted, and whether another coordinator uses it"));
}

// What is there counts first: a folder that takes nothing new can be read, and made emptier.
absl::StatusOr<FoundCheckpoints> ListOn(CheckpointDisk& disk,
                                        const action::ListCheckpoints& action) {
  if (!action.first) STARLING_RETURN_IF_ERROR(CheckSameRoot(disk, action));
  STARLING_ASSIGN_OR_RETURN(FoundCheckpoints found, ListCheckpoints(disk));
  if (!action.first) return found;
  // Their ids are not used again, so they only take room.
  if (const absl::Status left = RemoveLeftovers(disk, action.cluster); !left.ok())
    spdlog::warn("unfinished checkpoints were not removed: {}", std::string(left.message()));
  found.marked = WriteRootNonce(disk, action.cluster, action.nonce);
  return found;
}

// What stays of it is removed after the coordinator's next start.
void RemoveOn(CheckpointDisk& disk, const CheckpointId& id) {
  if (const absl::Status removed = RemoveDropped(disk, id); !removed.ok()) {
    spdlog::warn("{}{} was not removed: {}", ToString(id), kDeletedSuffix,
                 std::string(removed.message()));
  }
}

absl::StatusOr<CheckpointManifest> ReadOn(const std::shared_ptr<CheckpointDisk>& disk,
                                          const CheckpointInfo& info, bool all) {
  const auto id = ParseCheckpointId(info.id());
  if (!id) return absl::InternalError(absl::StrCat("no checkpoint's id: ", info.id()));
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader,
                            CheckpointReader::Open(disk, *id, info.manifest_digest()));
  if (all) STARLING_RETURN_IF_ERROR(reader->VerifyAll([](uint64_t) {}));
  return reader->manifest();
}

}  // namespace

CheckpointKeeper::CheckpointKeeper(std::shared_ptr<CheckpointDisk> disk,
                                   const MakeEventLoop& make_loop)
    : disk_(std::move(disk)), loop_(make_loop("checkpoints")), removals_(make_loop("removals")) {}

CheckpointKeeper::~CheckpointKeeper() { Stop(); }

void CheckpointKeeper::Stop() {
  loop_->Stop();  // it asks for removals
  removals_->Stop();
}

template <typename T, typename Work>
void CheckpointKeeper::Post(Work work, Done<T> done) {
  loop_->Post([disk = disk_, work = std::move(work), done = std::move(done)] {
    if (disk == nullptr) {
      return done(absl::FailedPreconditionError(
          "this coordinator keeps no checkpoints: it was started without --checkpoint-root"));
    }
    done(work(disk));
  });
}

void CheckpointKeeper::Make(const action::MakeCheckpoint& action, Done<absl::Status> done) {
  Post<absl::Status>(
      [action](const auto& disk) { return BeginCheckpoint(*disk, action.id, action.nonce); },
      std::move(done));
}

void CheckpointKeeper::Seal(const action::SealCheckpoint& action,
                            Done<absl::StatusOr<CheckpointInfo>> done) {
  Post<absl::StatusOr<CheckpointInfo>>([action](const auto& disk) { return SealOn(*disk, action); },
                                       std::move(done));
}

void CheckpointKeeper::Drop(const action::DropCheckpoint& action, Done<absl::Status> done) {
  Post<absl::Status>(
      [this, id = action.id](const auto& disk) {
        const absl::Status dropped = DropCheckpoint(*disk, id);
        if (dropped.ok()) removals_->Post([disk, id] { RemoveOn(*disk, id); });
        return dropped;
      },
      std::move(done));
}

void CheckpointKeeper::List(const action::ListCheckpoints& action,
                            Done<absl::StatusOr<FoundCheckpoints>> done) {
  Post<absl::StatusOr<FoundCheckpoints>>(
      [action](const auto& disk) { return ListOn(*disk, action); }, std::move(done));
}

void CheckpointKeeper::Read(const CheckpointInfo& info,
                            Done<absl::StatusOr<CheckpointManifest>> done) {
  Post<absl::StatusOr<CheckpointManifest>>(
      [info](const auto& disk) { return ReadOn(disk, info, /*all=*/false); }, std::move(done));
}

void CheckpointKeeper::Verify(const CheckpointInfo& info,
                              Done<absl::StatusOr<CheckpointManifest>> done) {
  Post<absl::StatusOr<CheckpointManifest>>(
      [info](const auto& disk) { return ReadOn(disk, info, /*all=*/true); }, std::move(done));
}

}  // namespace starling::coordinator
