// Which batch a job should have on this machine: what fits, by plan; what is fast, by trial.
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

// Batches are varied by the samples of a micro-batch; their number stays as the job has it.
// Used by one thread at a time.
class BatchAdvisor {
 public:
  struct Options {
    int lanes = 1;                           // as a worker has them; LanesOn says how many are used
    size_t bytes_max = 0;                    // that a job may plan
    absl::Duration time = absl::Seconds(2);  // that a batch is measured for, at least
  };
  struct Largest {
    int64_t samples = 0;  // of a micro-batch
    JobMemory::Planned planned;
  };

  // `spec` has its model resolved, and `data` is its training data. `device` outlives this.
  static absl::StatusOr<std::unique_ptr<BatchAdvisor>> Create(const JobSpec& spec,
                                                              std::shared_ptr<const DataSet> data,
                                                              const Options& options,
                                                              Device* device);

  int lanes() const { return executor_.lanes; }
  uint32_t micro_batches() const { return executor_.micro_batches; }
  const ResolvedGraph& graph() const { return graph_; }

  // The greatest micro-batch that fits: no more than a step's share of the training data. Plans a
  // program for each size that it tries, twice the logarithm of what fits: seconds to a minute.
  // kResourceExhausted: none fits.
  absl::StatusOr<Largest> LargestThatFits(const Recompute& recompute) const;

  // Powers of two up to `largest`, and `own`, where it is not above: ascending.
  static std::vector<int64_t> SizesToTry(int64_t largest, int64_t own);

  // Trains steps of micro-batches of so many real samples, held in memory, with parameters drawn
  // anew and left as they are: forward, backward and sums; without data loading and network. The
  // median over the steps after the first. Takes options.time, and two steps at least.
  // kFailedPrecondition: a loss is not finite. Else the errors of Executor::Create and Gather.
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
