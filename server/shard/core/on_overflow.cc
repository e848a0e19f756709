// fp16: gradients that overflowed are skipped, and the loss is scaled so that few are. Of a job's
// partitions, that of kLossScaleSlice keeps the scale: its log has one outcome for each step (BSP)
// or item (SSP, async). docs/protocol.md, section 10.
#include "common/placement/layout.h"
#include "server/shard/core/partition.h"

namespace starling {

// The scale behind the outcome of a record of `slice` that is ordered next. False: the scale is at
// its least and the gradient overflowed all the same, so the partition stops instead.
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
  Do(ReportFault{fault_, origin});
  return false;
}

// What gradients computed from this version of the slice are to be scaled by; 0: it does not say.
int Partition::LossScaleOf(SliceId slice, uint64_t version) const {
  return config_.KeepsLossScale() && slice == kLossScaleSlice ? applied_.loss_scale_log2(version)
                                                              : 0;
}

}  // namespace starling
