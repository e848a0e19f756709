// Recommends a job's batch on this machine: what fits, by planning; what is fast, by measuring.
#ifndef STARLING_WORKER_ADVICE_BATCH_ADVISOR_H_
#define STARLING_WORKER_ADVICE_BATCH_ADVISOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/graph/graph.h"
#include "common/placement/layout.h"
#include "kernels/device.h"
#include "proto/job.pb.h"
#include "worker/data/data_set.h"
#include "worker/executor/executor.h"
#include "worker/executor/job_memory.h"

namespace starling {

// Varies the samples of a micro-batch and keeps the job's number of micro-batches. Used by one
// thread at a time.
class BatchAdvisor {
 public:
  struct Options {
    int lanes = 1;                           // a worker's lanes; LanesOn decides how many are used
    size_t bytes_max = 0;                    // what a job may plan
    absl::Duration time = absl::Seconds(2);  // the least time for which a batch is measured
  };
  struct Largest {
    int64_t samples = 0;  // per micro-batch
    JobMemory::Planned planned;
  };

  // `spec` has its model resolved; `data` is its training data. `device` outlives this.
  static absl::StatusOr<std::unique_ptr<BatchAdvisor>> Create(const JobSpec& spec,
                                                              std::shared_ptr<const DataSet> data,
                                                              const Options& options,
                                                              Device* device);

  int lanes() const { return executor_.lanes; }
  uint32_t micro_batches() const { return executor_.micro_batches; }
  const ResolvedGraph& graph() const { return graph_; }

  // The largest micro-batch that fits, at most a step's share of the training data. Plans a program
  // for each size that it tries, twice the logarithm of the result: seconds to a minute.
  // kResourceExhausted: none fits.
  absl::StatusOr<Largest> LargestThatFits(const Recompute& recompute) const;

  // Powers of two up to `largest`, and `own` if it is not above; ascending.
  static std::vector<int64_t> SizesToTry(int64_t largest, int64_t own);

  // Trains steps of micro-batches of `samples` real samples, held in memory, with newly drawn
  // parameters that are not updated: forward, backward and sums, without data loading or network.
  // Returns the median over the steps after the first. Takes options.time, and at least two steps.
  // kFailedPrecondition: a loss is not finite. Other errors are those of Executor::Create and
  // Gather.
  absl::StatusOr<double> SamplesPerSecond(int64_t samples, const Recompute& recompute) const;

 private:
  BatchAdvisor(std::shared_ptr<const DataSet> data, absl::Duration time, Device* device)
      : data_(std::move(data)), time_(time), device_(device) {}

  const std::shared_ptr<const DataSet> data_;
  const absl::Duration time_;
  Device* const device_;
  ResolvedGraph graph_;
  Layout layout_;
  ExecutorOptions executor_;
};

}  // namespace starling

#endif  // STARLING_WORKER_ADVICE_BATCH_ADVISOR_H_
