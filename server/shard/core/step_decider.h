// What each step of a job is scaled by, where its whole gradient is clipped: docs/protocol.md,
// section 9. Gathers one squared norm from each partition, and decides when the last has come.
#ifndef STARLING_SERVER_SHARD_CORE_STEP_DECIDER_H_
#define STARLING_SERVER_SHARD_CORE_STEP_DECIDER_H_

#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "common/protocol/ids.h"

namespace starling {

struct StepDecision {
  Clock step = 0;   // of the job
  float scale = 1;  // in [0, 1]; of every gradient of the step
};

// min(1, clip_norm / (norm + 1e-6)), as PyTorch's clip_grad_norm_ has it. `norm2` is the squared
// norm of the sums; `rescale` is B / samples, by which a short batch's sums are multiplied first.
float ClipScale(double clip_norm, double norm2, double rescale);

// Not thread-safe.
class StepDecider {
 public:
  enum class Outcome {
    kWaits,      // taken; others are missing
    kRepeated,   // as before; others are missing
    kComplete,   // taken; it was the last: Decide
    kDecided,    // it is about the step decided last
    kOtherStep,  // it is about neither the step under way nor the one before
    kOtherNorm,  // the partition has reported another norm for this step
    kBadNorm,    // negative or not finite
    kStranger,   // the partition has nothing to report
  };

  // `reporters`: those with gradients to clip, ascending.
  explicit StepDecider(std::vector<PartitionId> reporters);

  // What is refused, or known already, changes nothing.
  Outcome Report(PartitionId from, Clock step, double norm2);

  // The squared norm of the step's whole gradient, summed in ascending order of partitions; the next
  // step is under way then. Only right after kComplete.
  double Decide();

  Clock step() const { return step_; }  // the one under way
  std::vector<PartitionId> Missing() const;

 private:
  const std::vector<PartitionId> reporters_;
  Clock step_ = 0;
  absl::btree_map<PartitionId, double> norms_;  // of the step under way
  size_t reports_ = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_STEP_DECIDER_H_
