// Decides, for each step of a job, the scale if the whole gradient is clipped, and whether the step
// is skipped if gradients may overflow: docs/protocol.md, section 9. Collects one report from each
// partition and decides after the last one.
#ifndef STARLING_SERVER_SHARD_CORE_STEP_DECIDER_H_
#define STARLING_SERVER_SHARD_CORE_STEP_DECIDER_H_

#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "common/protocol/ids.h"
#include "common/protocol/types.h"

namespace starling {

// A partition's report about its part of a step's gradient.
struct StepReport {
  double norm2 = 0;                                 // squared norm of the clipped slices
  std::optional<Origin> overflowed = std::nullopt;  // the first worker whose part overflowed
  // Which worker overflowed does not matter: another attempt may come from another worker.
  friend bool operator==(const StepReport& a, const StepReport& b) {
    return a.norm2 == b.norm2 && a.overflowed.has_value() == b.overflowed.has_value();
  }
};

// min(1, clip_norm / (norm + 1e-6)), as in PyTorch's clip_grad_norm_. `norm2` is the squared norm
// of the sums. `rescale` is B / samples; the sums of a short batch are multiplied by it first.
float ClipScale(double clip_norm, double norm2, double rescale);

// Not thread-safe.
class StepDecider {
 public:
  enum class Outcome {
    kWaits,      // accepted; others are missing
    kRepeated,   // a repetition; others are missing
    kComplete,   // accepted; it was the last one: call Decide
    kDecided,    // for the step that was decided last
    kOtherStep,  // for neither the current step nor the previous one
    kOtherNorm,  // the partition reported something else for this step
    kBadNorm,    // negative or not finite
    kStranger,   // the partition has nothing to report
  };

  // `reporters`: the partitions that report, ascending.
  explicit StepDecider(std::vector<PartitionId> reporters);

  // Refused and repeated reports change nothing.
  Outcome Report(PartitionId from, Clock step, const StepReport& report);

  // The report about the step's whole gradient: norms are summed in ascending order of partitions,
  // and the first overflow counts. Moves on to the next step. Call only right after kComplete.
  StepReport Decide();

  // Reports start at this step. Earlier steps belonged to a policy without decisions.
  void BeginAt(Clock step);

  Clock step() const { return step_; }  // the current step
  std::vector<PartitionId> Missing() const;

 private:
  const std::vector<PartitionId> reporters_;
  Clock step_ = 0;
  absl::btree_map<PartitionId, StepReport> taken_;  // for the current step
  size_t reports_ = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_STEP_DECIDER_H_
