// A job's parameters, from its shards: what export and predict begin with.
#ifndef STARLING_TOOLS_CLI_JOB_VALUES_H_
#define STARLING_TOOLS_CLI_JOB_VALUES_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/values/slice_reader.h"
#include "tools/cli/client.h"
#include "tools/cli/context.h"

namespace starling::cli {

// Called with the job and the point that is about to be read; it calls `read` once, and gets every
// slice of the layout in ascending order.
using JobValuesUser = std::function<absl::Status(
    const JobReply& job, const ReadPoint& point, const Layout& layout,
    const std::function<absl::Status(const SliceConsumer& consume)>& read)>;

// Reads the values at the job's end, or while it runs those of the newest epoch that was evaluated;
// begins again, a few times, where that copy was replaced while it was read, and waits a little
// where shards have not told the last of an ended job yet. kFailedPrecondition: the job has
// neither. kDataLoss: they are gone, with which shard. Never kUnavailable for a shard (kInternal):
// the coordinator was reached.
absl::Status ReadJobValues(const std::string& name, Client& client, Context& context,
                           const JobValuesUser& use);

// ", as they were after epoch 3", or nothing.
std::string PointText(const ReadPoint& point);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_JOB_VALUES_H_
