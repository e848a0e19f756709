// Reads a job's parameters from its shards, for export and predict.
#ifndef STARLING_TOOLS_CLI_JOB_VALUES_H_
#define STARLING_TOOLS_CLI_JOB_VALUES_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/values/slice_reader.h"
#include "tools/cli/client.h"
#include "tools/cli/context.h"

namespace starling::cli {

// Called with the job and the point to be read. It calls `read` once, and gets every slice of the
// layout in ascending order.
using JobValuesUser = std::function<absl::Status(
    const JobReply& job, const ReadPoint& point, const Layout& layout,
    const std::function<absl::Status(const SliceConsumer& consume)>& read)>;

// Reads the values at the job's end or, while it runs, those of the newest evaluated epoch. Retries
// a few times if that copy is replaced while it is read, and waits briefly for shards that have not
// reported an ended job's final state yet. kFailedPrecondition: the job has neither. kDataLoss: the
// values are gone; names the shard. A shard's failure is kInternal, never kUnavailable, since the
// coordinator was reached.
absl::Status ReadJobValues(const std::string& name, Client& client, Context& context,
                           const JobValuesUser& use);

// ", as they were after epoch 3", or empty.
std::string PointText(const ReadPoint& point);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_JOB_VALUES_H_
