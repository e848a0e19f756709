// Jobs that train the nets of compute_nets.h on generated files.
#ifndef STARLING_TOOLS_BUNDLE_BENCH_JOB_H_
#define STARLING_TOOLS_BUNDLE_BENCH_JOB_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starling {

struct BenchJob {
  std::string name;
  std::string file;   // path of the job file
  int64_t batch = 0;  // samples per step, which is one micro-batch
};

// Writes data and a job into `folder`. The job runs on a GPU with one worker, at staleness 1, in
// bf16, until it is cancelled. The nets: lenet, resnet50 and gpt2, with compute_nets.h's batches;
// images have one channel, as in MNIST's format. kNotFound: another net. Otherwise ReplaceFile's
// errors (common/base/files.h).
absl::StatusOr<BenchJob> WriteBenchJob(absl::string_view net, const std::string& folder);

}  // namespace starling

#endif  // STARLING_TOOLS_BUNDLE_BENCH_JOB_H_
