// fp16: gradients that overflowed are skipped, and the loss is scaled so that few are. Of a job's
// partitions, that of kLossScaleSlice keeps the scale: its log has one outcome for each step (BSP)
// or item (SSP, async). docs/protocol.md, section 10.
#include "common/placement/layout.h"
#include "server/shard/core/partition.h"

namespace starling {

bool Partition::keeps_loss_scale() const {
  const SliceState* slice = config_.scales_loss ? FindSlice(kLossScaleSlice) : nullptr;
  return slice != nullptr && slice->info.updated;
}

// The outcome of a record of `slice` that is ordered next. False: the scale is at its least and the
// gradient overflowed all the same, so the partition stops instead.
bool Partition::FoldOutcome(SliceId slice, bool skipped, int log2, int64_t step,
                            const Origin& origin, PartitionActions& actions) {
  if (!keeps_loss_scale() || slice != kLossScaleSlice) return true;
  if (!skipped) {
    loss_scale_.Clean();
    return true;
  }
  if (loss_scale_.Overflow(log2)) return true;
  fault_ = LossScale::Stopped(static_cast<uint64_t>(step), origin.worker);
  actions.push_back(ReportFault{fault_, origin});
  return false;
}

void Partition::NoteLossScale(const SliceState& slice, const Record& record, Lsn before) {
  if (!keeps_loss_scale() || record.slice != kLossScaleSlice) return;
  loss_scale_log2_[slice.applied % 2] =
      record.lsn > before ? record.loss_scale.log2 : loss_scale_log2_[(slice.applied + 1) % 2];
  skipped_steps_ += record.skipped ? 1 : 0;
}

// What gradients computed from this version of the slice are to be scaled by; 0: it does not say.
int Partition::LossScaleOf(SliceId slice, uint64_t version) const {
  return keeps_loss_scale() && slice == kLossScaleSlice ? loss_scale_log2_[version % 2] : 0;
}

}  // namespace starling
