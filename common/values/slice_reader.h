// Reads a job's parameters from its shards, as a reader that is not a member of the job
// (docs/protocol.md, section 3). The coordinator decides what is read of each partition.
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
  // The copy made at this epoch's cut; unset: the current values, which no longer change once the
  // job has ended.
  absl::optional<uint32_t> epoch;
  // Without `epoch`: by partition, exactly the values after this many steps; others: the newest.
  std::map<uint32_t, uint64_t> versions;
};

// What to read of a job that is over, as the coordinator says (JobReply.values).
// kFailedPrecondition: it never had values. kDataLoss: they are lost; names the shard.
// kUnavailable: some shards have not reported their final state yet; names them; retry.
absl::StatusOr<ReadPoint> ValuesAtTheEnd(const JobReply& job);

using SliceConsumer =
    std::function<absl::Status(const Slice& slice, absl::Span<const float> values)>;

// Passes every slice of the layout to `consume` once, in ascending order, on the calling thread,
// with a bounded number of slices in memory. Returns the consumer's first error; kAborted with the
// shard's text if a shard refuses; kUnavailable if one is unreachable; kDataLoss if bytes and
// digest differ; kDeadlineExceeded at `deadline` (a MonotonicNow time), with the slice and shard
// that it waited for; kCancelled soon after `stop` becomes true. `stop` may be nullptr.
absl::Status ReadSlices(StreamClient& client, const JobReply& job, const Layout& layout,
                        const ReadPoint& point, absl::Time deadline, const SliceConsumer& consume,
                        const std::atomic<bool>* stop = nullptr);

}  // namespace starling

#endif  // STARLING_COMMON_VALUES_SLICE_READER_H_
