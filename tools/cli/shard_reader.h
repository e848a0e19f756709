// Reads a job's parameters from its shards, as a reader that is no member of the job
// (docs/protocol.md, section 3).
#ifndef STARLING_TOOLS_CLI_SHARD_READER_H_
#define STARLING_TOOLS_CLI_SHARD_READER_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/placement/layout.h"
#include "common/transport/transport.h"
#include "proto/coordinator.pb.h"

namespace starling::cli {

struct ReadPoint {
  // The copy made at the cut of this epoch; unset: the values as they are, which stand still once the
  // job has ended.
  absl::optional<uint32_t> epoch;
  // Without `epoch`, in BSP: exactly the values after so many steps (JobStatus.sealed_steps).
  absl::optional<uint64_t> version;
};

using SliceConsumer = std::function<absl::Status(const Slice& slice, absl::Span<const float> values)>;

// Hands over every slice of the layout once, in ascending order, on the calling thread, with a bounded
// number of them in memory. Ends with the consumer's first error, with kAborted where a shard refuses
// (in its words), kUnavailable where one is not reached, kDataLoss where bytes and digest differ, and
// kDeadlineExceeded (says for which slice of which shard it waited).
absl::Status ReadSlices(StreamClient& client, const JobReply& job, const Layout& layout, const ReadPoint& point,
                        absl::Time deadline, const SliceConsumer& consume);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_SHARD_READER_H_
