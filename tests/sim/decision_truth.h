// What all slices of a step must agree on, checked against what happened: the scale of a clipped
// gradient and, in fp16, the loss scale and whether the step is skipped.
#ifndef STARLING_TESTS_SIM_DECISION_TRUTH_H_
#define STARLING_TESTS_SIM_DECISION_TRUTH_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/placement/layout.h"
#include "common/protocol/frame.h"
#include "common/protocol/record.h"
#include "common/protocol/types.h"
#include "tests/sim/workload.h"
#include "tests/sim/world.h"

namespace starling::sim {

// The decisions of one job. `bsp`: the push's policy is BSP.
class DecisionTruth {
 public:
  // All three outlive it.
  DecisionTruth(World* world, const Workload* workload, const Layout* layout)
      : world_(world), workload_(workload), layout_(layout) {}

  // A partition counts the push.
  void OnAccepted(const FrameHeader& push, bool bsp);
  // The squared norm of one slice's gradient in a step, if the job clips.
  void OnNorm(SliceId slice, const WorkRange& work, double norm2);
  void OnApplied(const Record& record, const FrameHeader& push, bool bsp);

  bool Skipped(SliceId slice, const ItemKey& item) const {
    return skipped_.contains({slice, item});
  }
  // The run begins with the state that a checkpoint of another one has.
  // `end`: the item of its first step.
  void BeginAt(const Restore& restore, const ItemKey& end, const DecisionTruth& before);
  int LossScaleAt(uint64_t step) const { return step < scales_.size() ? scales_[step] : -1; }
  // After all outcomes applied so far.
  int loss_scale_log2() const { return scales_.back(); }

 private:
  void CheckSkipped(const Record& record, const FrameHeader& push, bool bsp);
  void CheckScale(const Record& record) const;

  World* const world_;
  const Workload* const workload_;
  const Layout* const layout_;
  std::map<ItemKey, std::map<SliceId, double>> norms2_;
  // fp16.
  std::map<ItemKey, bool> overflowed_;  // whether any of its pushes did
  std::map<ItemKey, bool> decided_;     // BSP: whether it was skipped
  std::set<std::pair<SliceId, ItemKey>> skipped_;
  LossScale loss_scale_;
  std::vector<int> scales_ = {LossScale::kFirstLog2};  // of the loss, by number of outcomes
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_DECISION_TRUTH_H_
