// Reads a job's parameters from its shards, as a reader that is no member of the job
// (docs/protocol.md, section 3). What is read of each partition is the coordinator's to say.
#ifndef STARLING_COMMON_VALUES_SLICE_READER_H_
#define STARLING_COMMON_VALUES_SLICE_READER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/placement/layout.h"
#include "common/transport/transport.h"
#include "proto/coordinator.pb.h"

namespace starling {

struct ReadPoint {
  // The copy made at the cut of this epoch; unset: the values as they are, which stand still once
  // the job has ended.
  absl::optional<uint32_t> epoch;
  // Without `epoch`: by partition, exactly the values after so many steps; others: the newest.
  std::map<uint32_t, uint64_t> versions;
};

// What is read of a job that is over, as the coordinator says (JobReply.values).
// kFailedPrecondition: it never had values. kDataLoss: they are gone, and with which shard.
// kUnavailable: not all shards have told their last of it yet, and which: try again.
absl::StatusOr<ReadPoint> ValuesAtTheEnd(const JobReply& job);

using SliceConsumer =
    std::function<absl::Status(const Slice& slice, absl::Span<const float> values)>;

// Hands over every slice of the layout once, in ascending order, on the calling thread, with a
// bounded number of them in memory. Ends with the consumer's first error, with kAborted where a
// shard refuses (in its words), kUnavailable where one is not reached, kDataLoss where bytes and
// digest differ, and kDeadlineExceeded (says for which slice of which shard it waited) at
// `deadline`, a time of MonotonicNow's. kCancelled, soon, once `stop` is true; it may be nullptr.
absl::Status ReadSlices(StreamClient& client, const JobReply& job, const Layout& layout,
                        const ReadPoint& point, absl::Time deadline, const SliceConsumer& consume,
                        const std::atomic<bool>* stop = nullptr);

}  // namespace starling

#endif  // STARLING_COMMON_VALUES_SLICE_READER_H_
