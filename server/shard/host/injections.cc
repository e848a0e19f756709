#include "server/shard/host/injections.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace starling {
namespace {

bool ReadWait(const std::string& text, absl::Duration* wait) {
  return absl::ParseDuration(text, wait) && *wait > absl::ZeroDuration() && *wait <= absl::Hours(1);
}

}  // namespace

absl::Status ReadInjections(const std::string& apply, const std::string& queue,
                            const std::string& old_values, ShardInjections* out) {
  if (!apply.empty()) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(apply, absl::MaxSplits('@', 1));
    uint32_t partition = 0;
    const bool one = apply.find('@') != std::string::npos;
    if (!ReadWait(parts.first, &out->apply_wait) ||
        (one && !absl::SimpleAtoi(parts.second, &partition))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--inject-apply-wait: expected a time of at most 1h, as 0.05s, or with a partition, as "
          "0.05s@3, got \"",
          apply, "\""));
    }
    if (one) out->apply_partition = PartitionId(partition);
  }
  if (!queue.empty() && !ReadWait(queue, &out->queue_wait)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--inject-queue-wait: expected a time of at most 1h, as 0.05s, got \"", queue, "\""));
  }
  if (old_values.empty()) return absl::OkStatus();
  uint64_t bytes = 0;
  if (!absl::SimpleAtoi(old_values, &bytes) || bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--inject-old-values: expected a number of bytes of at least 1, as 16777216, got \"",
        old_values, "\""));
  }
  out->old_values_bytes_max = bytes;
  return absl::OkStatus();
}

}  // namespace starling
