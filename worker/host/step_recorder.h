// Records a worker's steps for an independent judge (tests/judge/trainer.py): parameters before the
// step, samples, gradients and loss.
//
// One safetensors file per step, step-000000.safetensors: param/NAME and grad/NAME (fp32, the
// parameter's shape), input [n, ...], label [n] (I32), loss [] (F64, mean over the n samples);
// metadata: model, optimizer, batch (protobuf JSON), steps (of the job), clock, micro_batch_samples
// ("[32, 32]"). Meaningful only if this worker computes each whole step as one range: one worker,
// BSP.
#ifndef STARLING_WORKER_HOST_STEP_RECORDER_H_
#define STARLING_WORKER_HOST_STEP_RECORDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/placement/layout.h"
#include "common/sync/mutex.h"
#include "proto/coordinator.pb.h"
#include "worker/core/events.h"
#include "worker/data/loader.h"
#include "worker/executor/executor.h"

namespace starling {

using TakenBatches = std::pmr::map<uint64_t, BatchHandle>;  // by micro-batch

// Thread-safe. The call that brings a step's last part writes the step.
class StepRecorder {
 public:
  // Records clocks [0, steps) into `directory`, which must exist.
  StepRecorder(std::string directory, int64_t steps)
      : directory_(std::move(directory)), steps_(steps) {}

  // From now on, calls are for this job.
  void BeginJob(const JobDescription& description, const Layout& layout);

  // The slice's value at `clock`.
  void Value(SliceId slice, Clock clock, absl::Span<const float> value);
  void Gradient(SliceId slice, Clock clock, absl::Span<const float> gradient);
  void Batches(const session::action::Compute& compute, const TakenBatches& taken,
               const UnitResult& result);

 private:
  struct Step {
    std::vector<float> values, gradients;  // flat
    std::set<SliceId> values_missing, gradients_missing;
    bool batches = false;
    uint64_t samples = 0;
    // Of inputs and tokens, and of labels and targets, one is used: see StagedBatch.
    std::vector<float> inputs;
    std::vector<int32_t> tokens;
    std::vector<int32_t> labels;
    std::vector<float> targets;
    std::vector<int64_t> micro_batch_samples;
    double loss = 0;
  };

  Step* Find(Clock clock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteIfComplete(Clock clock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(Clock clock, const Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string directory_;
  const int64_t steps_;
  Mutex mutex_;
  JobDescription description_ ABSL_GUARDED_BY(mutex_);
  Layout layout_ ABSL_GUARDED_BY(mutex_);
  std::map<Clock, Step> open_ ABSL_GUARDED_BY(mutex_);
  std::map<Clock, bool> written_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_STEP_RECORDER_H_
