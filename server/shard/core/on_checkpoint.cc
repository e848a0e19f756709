// A checkpoint has the values of a step at which exactly the steps below it are applied. No record
// is logged for it, since nothing changes: docs/decisions/0013-checkpoints.md, part 3.
#include <string>

#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

// Each number is answered once. Orders without it end it.
void Partition::TakeCheckpoint(const OrdersReceived& orders) {
  if (!orders.checkpoint.has_value()) return checkpoint_.reset();
  if (orders.checkpoint->number <= last_checkpoint_) return;
  last_checkpoint_ = orders.checkpoint->number;
  checkpoint_ = orders.checkpoint;
}

// The host's values are those of applied() only while nothing is being carried out.
void Partition::TryCheckpoint() {
  if (!checkpoint_.has_value() || !IsPrimary() || log_stopped_ || !log_.quiet()) return;
  const bool passed = applied_.Passed(checkpoint_->step);
  if (DefenceMasked(Defence::kCheckpointBoundary) && !passed) return;
  const absl::StatusOr<CutState> cut = applied_.AtCut(checkpoint_->step);
  if (cut.ok()) return Capture(*cut);
  if (passed) Miss(cut.status());
}

// Called before a record is handed out. An update of the checkpoint's step or beyond waits for
// those before it alone. Were it to wait for the checkpoint's other slices, whose records may be
// behind it, it might wait forever.
bool Partition::MayHandOut(const PartitionLog::Entry& entry) {
  const Record& record = entry.record;
  if (!checkpoint_.has_value() || record.kind != RecordKind::kApply || !IsPrimary() ||
      config_.JobStep(record.work) < static_cast<int64_t>(checkpoint_->step) ||
      DefenceMasked(Defence::kCheckpointBoundary))
    return true;
  if (!log_.quiet()) return false;
  const absl::StatusOr<CutState> cut = applied_.AtCut(checkpoint_->step);
  cut.ok() ? Capture(*cut) : Miss(cut.status());
  return true;
}

void Partition::Capture(const CutState& state) {
  CaptureCheckpoint capture{checkpoint_->number, state};
  // Where its evaluation is over, other partitions may have dropped theirs.
  if (state.copy < discard_cuts_before_) capture.state.copy.reset();
  checkpoint_.reset();
  ++counters_.captures;
  Do(std::move(capture));
}

void Partition::Miss(const absl::Status& why) {
  ++counters_.missed_captures;
  Do(MissCheckpoint{checkpoint_->number, std::string(why.message())});
  checkpoint_.reset();
}

}  // namespace starling
