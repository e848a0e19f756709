#include "server/coordinator/host/checkpoint_keeper.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

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

// A mount that is gone leaves an empty folder, in which no checkpoint is missed: kUnavailable.
absl::Status CheckSameRoot(CheckpointDisk& disk, uint64_t cluster, uint64_t nonce) {
  const absl::StatusOr<uint64_t> found = ReadRootNonce(disk, cluster);
  if (found.ok() && *found == nonce) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      kRootNonceFolder, "/", ToHex(cluster), ": expected ", ToHex(nonce), ", got ",
      found.ok() ? ToHex(*found) : std::string(found.status().message()),
      ": see whether the folder is still mounted, and whether another coordinator uses it"));
}

// `found`: reading the nonce. One was written there, so its file can be read where the folder is as
// it was. Whoever means a new folder can say so.
absl::Status CheckKnownRoot(const absl::Status& found, uint64_t cluster) {
  if (absl::IsPermissionDenied(found)) return absl::UnavailableError(found.message());
  if (!absl::IsNotFound(found)) return absl::OkStatus();
  const std::string file = absl::StrCat(kRootNonceFolder, "/", ToHex(cluster));
  return absl::UnavailableError(absl::StrCat(
      file, " is missing in the folder of checkpoints, but this cluster has used the folder, or ",
      "has jobs that begin with what is there: see whether the folder is mounted; if the jobs are "
      "to go on ",
      "with a new one, make the folder ", kRootNonceFolder, " in it, and the empty file ", file));
}

// A folder with another nonce: what was in it must be there still, or it is an older copy.
absl::Status CheckSameFolder(const FoundCheckpoints& found,
                             const std::vector<CheckpointId>& there) {
  for (const CheckpointId& id : there) {
    const bool whole = std::any_of(found.whole.begin(), found.whole.end(), [&](const auto& info) {
      return ParseCheckpointId(info.id()) == id;
    });
    if (whole || found.unreadable.contains(id)) continue;
    return absl::UnavailableError(absl::StrCat(
        "the folder of checkpoints has the number of another coordinator, and lacks checkpoint ",
        ToString(id),
        ", which was there: see whether an older copy of the folder is mounted; if "
        "it was deleted by hand, restart the coordinator"));
  }
  return absl::OkStatus();
}

// What is there counts first: a folder that takes nothing new can be read, and made emptier.
absl::StatusOr<FoundCheckpoints> ListOn(CheckpointDisk& disk,
                                        const action::ListCheckpoints& action) {
  const absl::StatusOr<uint64_t> nonce = ReadRootNonce(disk, action.cluster);
  if (action.known) STARLING_RETURN_IF_ERROR(CheckKnownRoot(nonce.status(), action.cluster));
  if (!action.first && absl::IsUnavailable(nonce.status())) return nonce.status();
  STARLING_ASSIGN_OR_RETURN(FoundCheckpoints found, ListCheckpoints(disk));
  if (action.first) {
    // Their ids are not used again, so they only take room.
    if (const absl::Status left = RemoveLeftovers(disk, action.cluster); !left.ok())
      spdlog::warn("unfinished checkpoints were not removed: {}", std::string(left.message()));
  } else if (nonce.ok() && *nonce == action.nonce) {
    return found;
  } else {
    STARLING_RETURN_IF_ERROR(CheckSameFolder(found, action.there));
  }
  found.marked = WriteRootNonce(disk, action.cluster, action.nonce);
  found.marked_now = found.marked.ok();
  return found;
}

// What stays of it is removed after the coordinator's next start.
void RemoveOn(CheckpointDisk& disk, const CheckpointId& id) {
  if (const absl::Status removed = RemoveDropped(disk, id); !removed.ok()) {
    spdlog::warn("{}{} was not removed: {}", ToString(id), kDeletedSuffix,
                 std::string(removed.message()));
  }
}

// `all`: null: not the data; else whether to go on with that, which is asked after each block.
absl::StatusOr<CheckpointManifest> ReadOn(const std::shared_ptr<CheckpointDisk>& disk,
                                          const CheckpointInfo& info,
                                          const std::function<bool()>& all) {
  const auto id = ParseCheckpointId(info.id());
  if (!id) return absl::InternalError(absl::StrCat("no checkpoint's id: ", info.id()));
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader,
                            CheckpointReader::Open(disk, *id, info.manifest_digest()));
  if (all) STARLING_RETURN_IF_ERROR(reader->VerifyAll([&](uint64_t) { return all(); }));
  return reader->manifest();
}

// Nothing is damaged in a folder that is not there.
absl::StatusOr<CheckpointManifest> VerifyOn(const std::shared_ptr<CheckpointDisk>& disk,
                                            const action::ReadCheckpoint& action,
                                            const std::function<bool()>& goes_on) {
  if (!goes_on()) return absl::CancelledError("the coordinator stops");
  absl::StatusOr<CheckpointManifest> read = ReadOn(disk, action.info, goes_on);
  if (read.ok() || action.nonce == 0) return read;
  const absl::Status same = CheckSameRoot(*disk, action.cluster, action.nonce);
  return same.ok() ? read : absl::AbortedError(same.message());
}

}  // namespace

CheckpointKeeper::CheckpointKeeper(std::shared_ptr<CheckpointDisk> disk,
                                   const MakeEventLoop& make_loop)
    : disk_(std::move(disk)),
      loop_(make_loop("checkpoints")),
      verifies_(make_loop("verify")),
      removals_(make_loop("removals")) {}

CheckpointKeeper::~CheckpointKeeper() { Stop(); }

void CheckpointKeeper::Stop() {
  stopping_ = true;
  verifies_->Stop();
  loop_->Stop();  // it asks for removals
  removals_->Stop();
}

template <typename T, typename Work>
void CheckpointKeeper::Post(EventLoop& loop, Work work, Done<T> done) {
  loop.Post([disk = disk_, work = std::move(work), done = std::move(done)] {
    if (disk == nullptr) {
      return done(absl::FailedPreconditionError(
          "this coordinator keeps no checkpoints: it was started without --checkpoint-root"));
    }
    done(work(disk));
  });
}

void CheckpointKeeper::Make(const action::MakeCheckpoint& action, Done<absl::Status> done) {
  Post<absl::Status>(
      *loop_,
      [action](const auto& disk) { return BeginCheckpoint(*disk, action.id, action.nonce); },
      std::move(done));
}

void CheckpointKeeper::Seal(const action::SealCheckpoint& action,
                            Done<absl::StatusOr<CheckpointInfo>> done) {
  Post<absl::StatusOr<CheckpointInfo>>(
      *loop_, [action](const auto& disk) { return SealOn(*disk, action); }, std::move(done));
}

void CheckpointKeeper::Drop(const action::DropCheckpoint& action, Done<absl::Status> done) {
  Post<absl::Status>(
      *loop_,
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
      *loop_, [action](const auto& disk) { return ListOn(*disk, action); }, std::move(done));
}

void CheckpointKeeper::Read(const CheckpointInfo& info,
                            Done<absl::StatusOr<CheckpointManifest>> done) {
  Post<absl::StatusOr<CheckpointManifest>>(
      *loop_, [info](const auto& disk) { return ReadOn(disk, info, /*all=*/nullptr); },
      std::move(done));
}

void CheckpointKeeper::Verify(const action::ReadCheckpoint& action,
                              Done<absl::StatusOr<CheckpointManifest>> done) {
  Post<absl::StatusOr<CheckpointManifest>>(
      *verifies_,
      [this, action](const auto& disk) {
        return VerifyOn(disk, action, [this] { return !stopping_; });
      },
      std::move(done));
}

}  // namespace starling::coordinator
