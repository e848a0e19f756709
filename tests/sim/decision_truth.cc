#include "tests/sim/decision_truth.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace starling::sim {

void DecisionTruth::BeginAt(const Restore& restore, const ItemKey& end,
                            const DecisionTruth& before) {
  for (const auto& skipped : before.skipped_) {
    if (skipped.second < end) skipped_.insert(skipped);
  }
  if (workload_->spec.precision() != PRECISION_FP16) return;
  const LossScale::State state{restore.loss_scale_log2(), restore.loss_scale_clean()};
  if (!loss_scale_.Restore(state)) {
    world_->Violate(Promise::kGoesOn,
                    absl::StrCat("a job goes on with a loss scale of 2^", state.log2));
  }
  scales_.assign(restore.step() + 1, state.log2);
}

// fp16: a gradient of a BSP step has that step's loss scale by the log. Under other policies it has
// a loss scale that the log had at some time.
void DecisionTruth::OnAccepted(const FrameHeader& push, bool bsp) {
  if (workload_->spec.precision() != PRECISION_FP16) return;
  overflowed_[ItemOf(*workload_, push.key.work)] |= (push.flags & frame_flags::kSkipped) != 0;
  const uint64_t step = JobStep(*workload_, push.key.work);
  const bool right = bsp ? step < scales_.size() && scales_[step] == push.loss_scale_log2
                         : std::count(scales_.begin(), scales_.end(), push.loss_scale_log2) > 0;
  if (right) return;
  world_->Violate(
      Promise::kDecision,
      absl::StrCat("a gradient of step ", step, " came with the loss scaled by 2^",
                   static_cast<int>(push.loss_scale_log2), ", which the log does not say"));
}

void DecisionTruth::OnApplied(const Record& record, const FrameHeader& push, bool bsp) {
  CheckSkipped(record, push, bsp);
  if (!record.skipped) CheckScale(record);
}

// fp16: a step is skipped on all slices if any of its gradients overflowed, else on none. In SSP
// and async, slices may hold different attempts, each of which was skipped as a whole or not at
// all.
void DecisionTruth::CheckSkipped(const Record& record, const FrameHeader& push, bool bsp) {
  if (workload_->spec.precision() != PRECISION_FP16) return;
  const auto key = ItemOf(*workload_, record.work);
  bool expected = (push.flags & frame_flags::kSkipped) != 0;
  if (bsp) {
    expected = overflowed_[key];
    if (decided_.try_emplace(key, record.skipped).first->second != record.skipped)
      expected = !record.skipped;
  }
  if (record.skipped != expected) {
    world_->Violate(Promise::kDecision,
                    absl::StrCat("slice ", record.slice.value, " of ", RangeToString(record.work),
                                 " was ", record.skipped ? "" : "not ", "skipped"));
  }
  if (record.skipped) {
    skipped_.insert({record.slice, key});
    world_->Count("updates that were skipped");
  }
  if (record.slice != kLossScaleSlice) return;
  if (!record.skipped) {
    loss_scale_.Clean();
  } else if (!loss_scale_.Overflow(push.loss_scale_log2)) {
    world_->Violate(Promise::kDecision, "a job went on after an overflow at the least scale");
  }
  scales_.push_back(loss_scale_.state().log2);
}

void DecisionTruth::OnNorm(SliceId slice, const WorkRange& work, double norm2) {
  norms2_[ItemOf(*workload_, work)][slice] = norm2;
}

// All slices of a step are scaled by the norm of its whole gradient, and none is applied before
// that norm is known.
void DecisionTruth::CheckScale(const Record& record) const {
  if (workload_->spec.clip().scope() != Clip::GLOBAL) return;
  if (layout_->slices[record.slice.value].kind != TRAINABLE) return;
  const auto step = norms2_.find(ItemOf(*workload_, record.work));
  double norm2 = 0;
  size_t known = 0;
  if (step != norms2_.end()) {
    for (const auto& [slice, of_slice] : step->second) norm2 += of_slice;
    known = step->second.size();
  }
  const auto trainable = static_cast<size_t>(
      std::count_if(layout_->slices.begin(), layout_->slices.end(),
                    [](const Slice& slice) { return slice.kind == TRAINABLE; }));
  const double stretch = static_cast<double>(workload_->spec.batch().global()) /
                         static_cast<double>(SamplesIn(*workload_, record.work));
  const double clip =
      std::min(1.0, workload_->spec.clip().norm() / (std::sqrt(norm2) * stretch + 1e-6));
  world_->Count(clip < 1 ? "updates that were clipped" : "updates below the norm");
  if (known == trainable && std::abs(record.scalars.scale - stretch * clip) < 1e-5 * stretch * clip)
    return;
  world_->Violate(Promise::kDecision,
                  absl::StrCat("slice ", record.slice.value, " of ", RangeToString(record.work),
                               " was scaled by ", record.scalars.scale, " with ", known, " of ",
                               trainable, " norms known, which say ", stretch * clip));
}

}  // namespace starling::sim
