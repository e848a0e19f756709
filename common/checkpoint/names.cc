#include "common/checkpoint/names.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace starling {
namespace {

constexpr std::array<absl::string_view, 4> kPartSuffixes = {"", ".slot0", ".slot1", ".evaluation"};
constexpr absl::string_view kShardPrefix = "shard-";
constexpr absl::string_view kShardSuffix = ".safetensors";

// As absl::StrCat writes it, and not otherwise: without signs, spaces and leading zeros.
std::optional<uint64_t> ParseDecimal(absl::string_view text) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || absl::StrCat(value) != text) return std::nullopt;
  return value;
}

}  // namespace

std::string ToHex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

std::optional<uint64_t> ParseHex(absl::string_view text) {
  uint64_t value = 0;
  if (!absl::SimpleHexAtoi(text, &value) || ToHex(value) != text) return std::nullopt;
  return value;
}

std::string ToString(const CheckpointId& id) {
  return absl::StrCat(ToHex(id.cluster), "-", id.job.value, "-", id.number);
}

std::optional<CheckpointId> ParseCheckpointId(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '-');
  if (parts.size() != 3) return std::nullopt;
  const std::optional<uint64_t> cluster = ParseHex(parts[0]);
  const std::optional<uint64_t> job = ParseDecimal(parts[1]);
  const std::optional<uint64_t> number = ParseDecimal(parts[2]);
  if (!cluster || !job || !number) return std::nullopt;
  return CheckpointId{*cluster, JobUid(*job), *number};
}

std::string ShardFileName(ShardId shard) {
  return absl::StrCat(kShardPrefix, absl::StrFormat("%010u", shard.value), kShardSuffix);
}

std::optional<ShardId> ParseShardFileName(absl::string_view name) {
  absl::string_view digits = name;
  uint32_t shard = 0;
  if (!absl::ConsumePrefix(&digits, kShardPrefix) || !absl::ConsumeSuffix(&digits, kShardSuffix) ||
      !absl::SimpleAtoi(digits, &shard) || ShardFileName(ShardId(shard)) != name) {
    return std::nullopt;
  }
  return ShardId(shard);
}

std::string ToString(const BlockName& name) {
  return absl::StrCat(name.parameter, "@", name.begin,
                      kPartSuffixes[static_cast<size_t>(name.part)]);
}

std::optional<BlockName> ParseBlockName(absl::string_view text) {
  const size_t at = text.rfind('@');
  if (at == text.npos) return std::nullopt;
  const absl::string_view rest = text.substr(at + 1);
  const size_t dot = std::min(rest.find('.'), rest.size());
  const std::optional<uint64_t> begin = ParseDecimal(rest.substr(0, dot));
  for (size_t part = 0; begin && part < kPartSuffixes.size(); ++part) {
    if (rest.substr(dot) == kPartSuffixes[part])
      return BlockName{std::string(text.substr(0, at)), *begin, static_cast<BlockPart>(part)};
  }
  return std::nullopt;
}

}  // namespace starling
