// What each step of a job is scaled by, where its whole gradient is clipped, and whether it is
// skipped, where gradients may overflow: docs/protocol.md, section 9. Gathers one report from each
// partition, and decides when the last has come.
#ifndef STARLING_SERVER_SHARD_CORE_STEP_DECIDER_H_
#define STARLING_SERVER_SHARD_CORE_STEP_DECIDER_H_

#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "common/protocol/ids.h"
#include "common/protocol/types.h"

namespace starling {

// What a partition says of its part of a step's gradient.
struct StepReport {
  double norm2 = 0;                                 // of what is clipped, squared
  std::optional<Origin> overflowed = std::nullopt;  // the first one whose part did
  // Who is blamed does not matter: another attempt may have been by somebody else.
  friend bool operator==(const StepReport& a, const StepReport& b) {
    return a.norm2 == b.norm2 && a.overflowed.has_value() == b.overflowed.has_value();
  }
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
    kOtherNorm,  // the partition has reported something else for this step
    kBadNorm,    // negative or not finite
    kStranger,   // the partition has nothing to report
  };

  // `reporters`: those with something to report, ascending.
  explicit StepDecider(std::vector<PartitionId> reporters);

  // What is refused, or known already, changes nothing.
  Outcome Report(PartitionId from, Clock step, const StepReport& report);

  // Of the step's whole gradient: norms are summed in ascending order of partitions, and of those
  // that overflowed the first counts. The next step is under way then. Only right after kComplete.
  StepReport Decide();

  // Steps are reported from here on: those before were of a policy that decides nothing.
  void BeginAt(Clock step);

  Clock step() const { return step_; }  // the one under way
  std::vector<PartitionId> Missing() const;

 private:
  const std::vector<PartitionId> reporters_;
  Clock step_ = 0;
  absl::btree_map<PartitionId, StepReport> taken_;  // of the step under way
  size_t reports_ = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_STEP_DECIDER_H_
