#include "common/checkpoint/store.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/reader.h"
#include "common/defences.h"

namespace starling {
namespace {

constexpr int kRemoveAttempts = 3;

std::string Partial(const CheckpointId& id) { return absl::StrCat(ToString(id), kPartialSuffix); }
std::string Deleted(const CheckpointId& id) { return absl::StrCat(ToString(id), kDeletedSuffix); }

absl::Status OkIfNotFound(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

// Ok if it is not there. A shard that does not know yet may add a file meanwhile: then again. A
// link or a file in its place is removed itself.
absl::Status RemoveFolder(CheckpointDisk& disk, const std::string& folder) {
  absl::Status status;
  for (int attempt = 0; attempt < kRemoveAttempts; ++attempt) {
    absl::StatusOr<std::vector<std::string>> names = disk.List(folder);
    if (absl::IsInvalidArgument(names.status())) names.emplace();
    if (!names.ok()) return OkIfNotFound(names.status());
    for (const std::string& name : *names)
      STARLING_RETURN_IF_ERROR(OkIfNotFound(disk.Remove(folder, name)));
    status = OkIfNotFound(disk.Remove("", folder));
    if (status.ok()) return disk.SyncFolder("");
  }
  return status;
}

// Renames `folder` durably, so that nobody finds it. kNotFound.
absl::Status Hide(CheckpointDisk& disk, const CheckpointId& id, const std::string& folder) {
  // What an earlier call left would be in the way.
  STARLING_RETURN_IF_ERROR(RemoveDropped(disk, id));
  STARLING_RETURN_IF_ERROR(disk.Rename("", folder, Deleted(id)));
  return DefenceMasked(Defence::kDropSync) ? absl::OkStatus() : disk.SyncFolder("");
}

// What a reader asks for before it reads the first value: one that is sealed can be opened.
absl::Status CheckStored(CheckpointDisk& disk, const std::string& folder, const CheckpointId& id,
                         const std::string& text) {
  STARLING_ASSIGN_OR_RETURN(const std::string stored,
                            ReadWholeFile(disk, folder, kManifestFile, kManifestBytesMax, true));
  if (stored != text) {
    return absl::DataLossError(
        absl::StrCat(folder, "/", kManifestFile, ": what was read back differs"));
  }
  return CheckpointReader::Check(disk, folder, id, ManifestDigest(text));
}

absl::StatusOr<CheckpointInfo> Describe(CheckpointDisk& disk, const std::string& folder) {
  STARLING_ASSIGN_OR_RETURN(const std::string text,
                            ReadWholeFile(disk, folder, kManifestFile, kManifestBytesMax));
  STARLING_ASSIGN_OR_RETURN(const CheckpointManifest manifest, ParseManifest(text));
  if (manifest.id() != folder)
    return absl::DataLossError(absl::StrCat(folder, " has the manifest of ", manifest.id()));
  return DescribeCheckpoint(manifest, text);
}

}  // namespace

absl::Status BeginCheckpoint(CheckpointDisk& disk, const CheckpointId& id, uint64_t nonce) {
  const absl::Status there = disk.List(ToString(id)).status();
  if (there.ok()) {
    return absl::AlreadyExistsError(absl::StrCat("checkpoint ", ToString(id), " is there already"));
  }
  if (!absl::IsNotFound(there)) return there;
  STARLING_RETURN_IF_ERROR(disk.MakeFolder(Partial(id)));
  STARLING_RETURN_IF_ERROR(WriteWholeFile(disk, Partial(id), kNonceFile, ToHex(nonce)));
  return disk.SyncFolder("");
}

absl::StatusOr<uint64_t> SealCheckpoint(CheckpointDisk& disk, const CheckpointId& id,
                                        const CheckpointManifest& manifest) {
  const std::string text = EncodeManifest(manifest);
  const std::string folder = DefenceMasked(Defence::kManifestLast) ? ToString(id) : Partial(id);
  if (folder != Partial(id)) STARLING_RETURN_IF_ERROR(disk.Rename("", Partial(id), folder));
  // All parts are there: a shard that is at an earlier order finds no nonce, and writes nothing.
  STARLING_RETURN_IF_ERROR(OkIfNotFound(disk.Remove(folder, kNonceFile)));
  STARLING_RETURN_IF_ERROR(WriteWholeFile(disk, folder, kManifestFile, text));
  // Before the rename: what has the name is a checkpoint, whether or not this process lives on.
  if (!DefenceMasked(Defence::kManifestCheck))
    STARLING_RETURN_IF_ERROR(CheckStored(disk, folder, id, text));
  if (!DefenceMasked(Defence::kManifestLast))
    STARLING_RETURN_IF_ERROR(disk.Rename("", folder, ToString(id)));
  if (!DefenceMasked(Defence::kRootSync)) STARLING_RETURN_IF_ERROR(disk.SyncFolder(""));
  return DescribeCheckpoint(manifest, text).bytes();
}

absl::Status DropCheckpoint(CheckpointDisk& disk, const CheckpointId& id) {
  const absl::Status whole = Hide(disk, id, ToString(id));
  return absl::IsNotFound(whole) ? OkIfNotFound(Hide(disk, id, Partial(id))) : whole;
}

absl::Status RemoveDropped(CheckpointDisk& disk, const CheckpointId& id) {
  if (!DefenceMasked(Defence::kDropSync))
    STARLING_RETURN_IF_ERROR(disk.SyncFolder(""));  // its name, before the first file goes
  return RemoveFolder(disk, Deleted(id));
}

absl::StatusOr<FoundCheckpoints> ListCheckpoints(CheckpointDisk& disk) {
  STARLING_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk.List(""));
  std::map<CheckpointId, CheckpointInfo> whole;
  FoundCheckpoints found;
  for (const std::string& name : names) {
    const std::optional<CheckpointId> id = ParseCheckpointId(name);
    if (!id) continue;
    absl::StatusOr<CheckpointInfo> info = Describe(disk, name);
    if (absl::IsUnavailable(info.status())) return info.status();
    if (info.ok()) {
      whole[*id] = *std::move(info);
    } else {
      found.unreadable[*id] = std::string(info.status().message());
    }
  }
  for (auto& [id, info] : whole) found.whole.push_back(std::move(info));
  return found;
}

absl::Status RemoveLeftovers(CheckpointDisk& disk, uint64_t cluster) {
  STARLING_ASSIGN_OR_RETURN(std::vector<std::string> names, disk.List(""));
  absl::Status first;
  std::sort(names.begin(), names.end());  // ID.deleted is gone before ID.partial takes its name
  for (const std::string& name : names) {
    absl::string_view stem = name;
    const bool deleted = absl::ConsumeSuffix(&stem, kDeletedSuffix);
    if (!deleted && !absl::ConsumeSuffix(&stem, kPartialSuffix)) continue;
    const std::optional<CheckpointId> id = ParseCheckpointId(stem);
    if (!id || id->cluster != cluster) continue;
    if (!deleted) first.Update(OkIfNotFound(Hide(disk, *id, name)));
    first.Update(RemoveDropped(disk, *id));
  }
  return first;
}

absl::Status WriteRootNonce(CheckpointDisk& disk, uint64_t cluster, uint64_t nonce) {
  if (const absl::Status made = disk.MakeFolder(kRootNonceFolder);
      !made.ok() && !absl::IsAlreadyExists(made)) {
    return made;
  }
  STARLING_RETURN_IF_ERROR(disk.SyncFolder(""));
  return WriteWholeFile(disk, kRootNonceFolder, ToHex(cluster), ToHex(nonce));
}

absl::StatusOr<uint64_t> ReadRootNonce(CheckpointDisk& disk, uint64_t cluster) {
  return ReadNonce(disk, kRootNonceFolder, ToHex(cluster));
}

absl::StatusOr<uint64_t> ReadNonce(CheckpointDisk& disk, const std::string& folder,
                                   const std::string& name) {
  STARLING_ASSIGN_OR_RETURN(const std::string text,
                            ReadWholeFile(disk, folder, name, /*bytes_max=*/16));
  const std::optional<uint64_t> nonce = ParseHex(text);
  if (nonce) return *nonce;
  return absl::DataLossError(absl::StrCat(folder, "/", name, ": expected 16 hex digits, got \"",
                                          absl::CHexEscape(text), "\""));
}

}  // namespace starling
