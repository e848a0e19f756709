// The names in a checkpoint root (docs/decisions/0013-checkpoints.md, part 2):
//
//   ROOT/.starling/<cluster>      ROOT/<id>.partial/nonce
//   ROOT/<id>/manifest.json       ROOT/<id>/shard-0000000003.safetensors
//
// and the entries of a shard's file, PARAMETER@BEGIN[.PART]. Pure. Each text has one value and each
// value one text.
#ifndef STARLING_COMMON_CHECKPOINT_NAMES_H_
#define STARLING_COMMON_CHECKPOINT_NAMES_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/protocol/ids.h"

namespace starling {

inline constexpr char kRootNonceFolder[] = ".starling";
inline constexpr char kNonceFile[] = "nonce";
inline constexpr char kManifestFile[] = "manifest.json";
// Of files and folders that are being written, and of folders that are being removed.
inline constexpr char kPartialSuffix[] = ".partial";
inline constexpr char kDeletedSuffix[] = ".deleted";

// Never used twice: the number grows per job.
struct CheckpointId {
  uint64_t cluster = 0;
  JobUid job;
  uint64_t number = 0;
  friend auto operator<=>(const CheckpointId&, const CheckpointId&) = default;
};

// "00c0ffee00c0ffee-12-3": also the name of its folder.
std::string ToString(const CheckpointId& id);
std::optional<CheckpointId> ParseCheckpointId(absl::string_view text);

std::string ShardFileName(ShardId shard);  // "shard-0000000003.safetensors"
std::optional<ShardId> ParseShardFileName(absl::string_view name);

// 16 hex digits, lower case: nonces, clusters and digests.
std::string ToHex(uint64_t value);
std::optional<uint64_t> ParseHex(absl::string_view text);

enum class BlockPart : uint8_t { kValue, kSlot0, kSlot1, kEvaluation };

// Consecutive elements of a parameter, from `begin` on: a Segment of one slice.
struct BlockName {
  std::string parameter;
  uint64_t begin = 0;
  BlockPart part = BlockPart::kValue;
  friend auto operator<=>(const BlockName&, const BlockName&) = default;
};

// "conv1.weight@262144", "conv1.weight@262144.slot0". Read from the last '@', so a parameter may
// have any name.
std::string ToString(const BlockName& name);
std::optional<BlockName> ParseBlockName(absl::string_view text);

}  // namespace starling

#endif  // STARLING_COMMON_CHECKPOINT_NAMES_H_
