// fp16: overflowed gradients are skipped, and the loss is scaled so that few overflow. The
// partition of kLossScaleSlice keeps the job's scale: its log has one outcome for each step (BSP)
// or item (SSP, async). docs/protocol.md, section 10.
#include "common/placement/layout.h"
#include "server/shard/core/partition.h"

namespace starling {

// Computes the scale after the outcome of the next record of `slice`. False: the gradient
// overflowed at the lowest scale, so the partition stops instead.
bool Partition::NextLossScale(SliceId slice, bool skipped, int log2, int64_t step,
                              const Origin& origin, LossScale::State* next) {
  if (!config_.KeepsLossScale() || slice != kLossScaleSlice) return true;
  LossScale scale;
  scale.Restore(ordered_.loss_scale());
  const bool goes_on = !skipped || scale.Overflow(log2);
  if (!skipped) scale.Clean();
  *next = scale.state();
  if (goes_on) return true;
  fault_ = LossScale::Stopped(static_cast<uint64_t>(step), origin.worker);
  diverged_ = true;
  Do(ReportFault{fault_, origin});
  return false;
}

// log2 of the scale for gradients computed from this version of the slice; 0: the slice does not
// carry it.
int Partition::LossScaleOf(SliceId slice, uint64_t version) const {
  return config_.KeepsLossScale() && slice == kLossScaleSlice ? applied_.loss_scale_log2(version)
                                                              : 0;
}

}  // namespace starling
