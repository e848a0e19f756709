// Delays and memory limits that tests inject into a shard.
#ifndef STARLING_SERVER_SHARD_HOST_INJECTIONS_H_
#define STARLING_SERVER_SHARD_HOST_INJECTIONS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/ids.h"

namespace starling {

struct ShardInjections {
  absl::Duration apply_wait;                   // the owner's thread waits this long in each update
  std::optional<PartitionId> apply_partition;  // only of this partition; unset: of all
  absl::Duration queue_wait;  // each frame waits this long before its owner handles it
  std::optional<uint64_t> old_values_bytes_max;  // ShardMemory

  absl::Duration ApplyWait(PartitionId partition) const {
    return apply_partition.value_or(partition) == partition ? apply_wait : absl::ZeroDuration();
  }
};

// `apply`: "0.05s" or, for partition 3 alone, "0.05s@3"; `queue`: "0.05s"; `old_values`: bytes, as
// "16777216"; empty: none. kInvalidArgument names the flag and its value.
absl::Status ReadInjections(const std::string& apply, const std::string& queue,
                            const std::string& old_values, ShardInjections* out);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_INJECTIONS_H_
