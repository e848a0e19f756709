// Jobs that train what compute_nets.h has, from files made on the spot.
#ifndef STARLING_TOOLS_BUNDLE_BENCH_JOB_H_
#define STARLING_TOOLS_BUNDLE_BENCH_JOB_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starling {

struct BenchJob {
  std::string name;
  std::string file;   // the job file
  int64_t batch = 0;  // samples of a step, which is one micro-batch
};

// Writes data and a job on a GPU, of one worker, at staleness 1, in bf16, that ends when it is
// cancelled, into `folder`. The nets: lenet, resnet50 and gpt2, of compute_nets.h's batches; images
// have one channel, which is what MNIST's format holds. kNotFound: another net. kUnavailable: a
// file cannot be written.
absl::StatusOr<BenchJob> WriteBenchJob(absl::string_view net, const std::string& folder);

}  // namespace starling

#endif  // STARLING_TOOLS_BUNDLE_BENCH_JOB_H_
