#include "common/checkpoint/shard_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/digest.h"
#include "common/checkpoint/store.h"
#include "common/defences.h"
#include "common/protocol/limits.h"
#include "common/safetensors/safetensors.h"

namespace starling {
namespace {

// The file is synced each time that this many bytes were written, so that no sync takes long: it
// would look like a disk that hangs.
constexpr uint64_t kBytesPerSync = 64 << 20;
constexpr size_t kReadBytes = 1 << 20;
constexpr size_t kDigestChars = 16;

std::map<std::string, std::string> MetadataOf(const CheckpointId& id, uint64_t step,
                                              std::string digests) {
  return {{"format", "pt"},
          {"starling", "checkpoint/1"},
          {"id", ToString(id)},
          {"step", absl::StrCat(step)},
          {"digests", std::move(digests)}};
}

absl::Status CheckNonce(CheckpointDisk& disk, const std::string& folder, uint64_t nonce) {
  const absl::StatusOr<uint64_t> found = ReadNonce(disk, folder, kNonceFile);
  if (found.ok() && *found == nonce) return absl::OkStatus();
  if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
  return absl::FailedPreconditionError(absl::StrCat(
      folder, "/", kNonceFile, ": expected ", ToHex(nonce), ", got ",
      found.ok() ? ToHex(*found) : std::string(found.status().message()),
      ": --checkpoint-root here is not the coordinator's, or the checkpoint was given up"));
}

// No job can go on from NaN or infinity, and older checkpoints would be removed for it.
absl::Status CheckFinite(const BlockName& name, absl::Span<const float> values) {
  const auto bad = absl::c_find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("element ", bad - values.begin(), " of ", ToString(name), " is ", *bad,
                   ": expected finite values, as no job can go on from others"));
}

// The file's header, with the digest of each block.
absl::StatusOr<std::string> EncodeHeaderOf(const std::vector<BlockName>& names,
                                           const CheckpointCapture& capture, const CheckpointId& id,
                                           uint64_t step) {
  std::vector<safetensors::TensorInfo> entries;
  entries.reserve(names.size());
  std::string digests;
  for (const BlockName& name : names) {
    STARLING_ASSIGN_OR_RETURN(const CapturedBlock block, capture.Borrow(name));
    STARLING_RETURN_IF_ERROR(CheckFinite(name, block.values));
    entries.push_back({.name = ToString(name), .shape = {block.values.size()}});
    absl::StrAppend(&digests, ToHex(Xxh64Of(AsText(AsBytes(block.values)))));
  }
  return safetensors::EncodeHeader(&entries, MetadataOf(id, step, std::move(digests)));
}

// Everything up to the file's last sync. `file` gets size and digest.
absl::Status WriteBlocks(CheckpointDisk::Writable& out, const CheckpointId& id, uint64_t step,
                         CheckpointCapture& capture, absl::FunctionRef<void(uint64_t)> progress,
                         CheckpointFile* file) {
  const std::vector<BlockName> names = capture.Names();
  STARLING_RETURN_IF_ERROR(capture.status());
  STARLING_ASSIGN_OR_RETURN(const std::string header, EncodeHeaderOf(names, capture, id, step));
  Xxh128 hash;
  uint64_t written = 0, synced = 0;
  const auto append = [&](absl::string_view bytes) -> absl::Status {
    STARLING_RETURN_IF_ERROR(out.Append(bytes));
    hash.Add(bytes);
    written += bytes.size();
    if (written - synced >= kBytesPerSync) {
      STARLING_RETURN_IF_ERROR(out.Sync());
      synced = written;
    }
    progress(written);
    return absl::OkStatus();
  };
  STARLING_RETURN_IF_ERROR(append(header));
  for (const BlockName& name : names) {
    STARLING_ASSIGN_OR_RETURN(const CapturedBlock block, capture.Borrow(name));
    STARLING_RETURN_IF_ERROR(append(AsText(AsBytes(block.values))));
    capture.Release(name);
  }
  file->set_bytes(written);
  file->set_xxh3(hash.Digest());
  return DefenceMasked(Defence::kFileSync) ? absl::OkStatus() : out.Sync();
}

absl::Status ReadBack(CheckpointDisk& disk, const std::string& folder, const CheckpointId& id,
                      uint64_t step, const CheckpointFile& file,
                      absl::FunctionRef<void(uint64_t)> progress) {
  STARLING_ASSIGN_OR_RETURN(const auto in, disk.Open(folder, file.name(), /*from_disk=*/true));
  STARLING_ASSIGN_OR_RETURN(const std::vector<StoredBlock> blocks,
                            ReadShardFileHeader(*in, id, step));
  return VerifyShardFile(*in, blocks, file, [&](uint64_t read) {
    progress(file.bytes() + read);
    return true;
  });
}

absl::Status NoShardFile(const std::string& what) {
  return absl::DataLossError(absl::StrCat("not a shard's file of this checkpoint: ", what));
}

// The metadata but for the digests, which are of any length.
absl::Status CheckMetadata(const std::map<std::string, std::string>& metadata,
                           const CheckpointId& id, uint64_t step) {
  for (const auto& [key, expected] : MetadataOf(id, step, "")) {
    const auto it = metadata.find(key);
    if (it == metadata.end()) return NoShardFile(absl::StrCat("its header has no ", key));
    if (key != "digests" && it->second != expected) {
      return NoShardFile(absl::StrCat("its header should have the ", key, " ", expected, ", not ",
                                      absl::CHexEscape(it->second.substr(0, 200))));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredBlock> ToBlock(const safetensors::TensorInfo& entry,
                                    const safetensors::Header& header, size_t index) {
  const std::optional<BlockName> name = ParseBlockName(entry.name);
  const std::optional<uint64_t> digest = ParseHex(
      absl::string_view(header.metadata.at("digests")).substr(index * kDigestChars, kDigestChars));
  const bool shaped = entry.dtype == safetensors::DType::kF32 && entry.shape.size() == 1 &&
                      entry.shape[0] >= 1 && entry.shape[0] <= limits::kSliceElementsMax;
  if (!name || !digest || !shaped) {
    return NoShardFile(absl::StrCat(
        "entry ", entry.name, ": expected PARAMETER@BEGIN and a part, F32 of 1 to ",
        limits::kSliceElementsMax, " elements and a digest, got ",
        safetensors::DTypeName(entry.dtype), "[", absl::StrJoin(entry.shape, ","), "]"));
  }
  return StoredBlock{*name, entry.shape[0], header.data_begin + entry.begin, *digest};
}

}  // namespace

absl::StatusOr<CheckpointFile> WriteShardFile(CheckpointDisk& disk, const CheckpointId& id,
                                              uint64_t nonce, uint64_t step, ShardId shard,
                                              CheckpointCapture& capture,
                                              absl::FunctionRef<void(uint64_t)> progress) {
  const std::string folder = absl::StrCat(ToString(id), kPartialSuffix);
  STARLING_RETURN_IF_ERROR(CheckNonce(disk, folder, nonce));
  CheckpointFile file;
  file.set_name(ShardFileName(shard));
  // The one that is there may be counted already.
  const absl::Status there = disk.Open(folder, file.name()).status();
  if (there.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, "/", file.name(), ": expected no such file yet: it is written once"));
  }
  if (!absl::IsNotFound(there)) return there;
  const std::string partial = absl::StrCat(file.name(), kPartialSuffix);
  const auto write = [&]() -> absl::Status {
    STARLING_ASSIGN_OR_RETURN(const auto out, disk.Create(folder, partial));
    STARLING_RETURN_IF_ERROR(WriteBlocks(*out, id, step, capture, progress, &file));
    STARLING_RETURN_IF_ERROR(disk.Rename(folder, partial, file.name()));
    if (!DefenceMasked(Defence::kFolderSync)) STARLING_RETURN_IF_ERROR(disk.SyncFolder(folder));
    if (DefenceMasked(Defence::kReadBack)) return absl::OkStatus();
    return Prefixed(absl::StrCat(folder, "/", file.name(), ", read back"),
                    ReadBack(disk, folder, id, step, file, progress));
  };
  if (const absl::Status status = write(); !status.ok()) {
    disk.Remove(folder, partial).IgnoreError();
    disk.Remove(folder, file.name()).IgnoreError();
    return status;
  }
  return file;
}

absl::StatusOr<std::vector<StoredBlock>> ReadShardFileHeader(const CheckpointDisk::Readable& file,
                                                             const CheckpointId& id,
                                                             uint64_t step) {
  const absl::StatusOr<safetensors::Header> header = safetensors::ReadHeader(
      file.bytes(),
      [&](uint64_t offset, absl::Span<uint8_t> out) { return file.ReadAt(offset, out); });
  if (absl::IsInvalidArgument(header.status()))
    return NoShardFile(std::string(header.status().message()));
  STARLING_RETURN_IF_ERROR(header.status());
  STARLING_RETURN_IF_ERROR(CheckMetadata(header->metadata, id, step));
  const size_t digests = header->metadata.at("digests").size();
  if (digests != header->tensors.size() * kDigestChars) {
    return NoShardFile(absl::StrCat("expected ", header->tensors.size(), " digests of ",
                                    kDigestChars, " digits, got ", digests, " digits"));
  }
  std::vector<StoredBlock> blocks;
  blocks.reserve(header->tensors.size());
  for (const safetensors::TensorInfo& entry : header->tensors) {
    STARLING_ASSIGN_OR_RETURN(StoredBlock block, ToBlock(entry, *header, blocks.size()));
    blocks.push_back(std::move(block));
  }
  return blocks;
}

absl::Status CheckBlock(const StoredBlock& block, absl::Span<const uint8_t> bytes) {
  const uint64_t digest = Xxh64Of(AsText(bytes));
  if (digest == block.digest) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("entry ", ToString(block.name), ": expected the digest ",
                                          ToHex(block.digest), ", got ", ToHex(digest)));
}

absl::Status VerifyShardFile(const CheckpointDisk::Readable& file,
                             const std::vector<StoredBlock>& blocks, const CheckpointFile& expected,
                             absl::FunctionRef<bool(uint64_t)> progress) {
  if (file.bytes() != expected.bytes()) {
    return absl::DataLossError(
        absl::StrCat("expected ", expected.bytes(), " bytes, got ", file.bytes()));
  }
  Xxh128 hash;
  std::vector<uint8_t> buffer;
  uint64_t at = 0;
  const auto read = [&](uint64_t bytes) -> absl::Status {
    buffer.resize(bytes);
    STARLING_RETURN_IF_ERROR(file.ReadAt(at, absl::MakeSpan(buffer)));
    hash.Add(AsText(buffer));
    at += bytes;
    return absl::OkStatus();
  };
  const uint64_t header_end = blocks.empty() ? file.bytes() : blocks.front().offset;
  while (at < header_end)
    STARLING_RETURN_IF_ERROR(read(std::min<uint64_t>(kReadBytes, header_end - at)));
  for (const StoredBlock& block : blocks) {
    STARLING_RETURN_IF_ERROR(read(block.elements * sizeof(float)));
    STARLING_RETURN_IF_ERROR(CheckBlock(block, buffer));
    if (!progress(at)) return absl::CancelledError("stopped before its end");
  }
  if (const std::string digest = hash.Digest(); digest != expected.xxh3()) {
    return absl::DataLossError(absl::StrCat("expected the digest ",
                                            absl::BytesToHexString(expected.xxh3()), ", got ",
                                            absl::BytesToHexString(digest)));
  }
  return absl::OkStatus();
}

}  // namespace starling
