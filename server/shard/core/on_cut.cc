// The end of an epoch: when every slice covers every item, the values are the epoch's result.
// docs/protocol.md, section 4.
#include <utility>

#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

void Partition::TryCut() {
  const uint32_t epoch = ordered_.cut_epochs();
  if (epoch >= config_.Epochs() || epoch > open_epoch_ || !IsPrimary()) return;
  if (!ordered_.Complete(epoch)) return;
  // The memory of the last copy is in use while it is evaluated. Orders say when it is free.
  const std::optional<uint32_t> copy = ordered_.copy();
  if (config_.NeedsCopy(epoch) && copy.has_value() && *copy >= discard_cuts_before_) return;
  Record record;
  record.kind = RecordKind::kCut;
  record.work.purpose = WorkPurpose::kTrain;
  record.work.epoch = epoch;
  Order(std::move(record), BufferId(), {});
}

void Partition::FinishCut(std::optional<uint32_t> copy_before) {
  if (const std::optional<uint32_t> copy = applied_.copy(); copy != copy_before) {
    if (copy_before.has_value()) Do(DropCopy{*copy_before});
    if (DefenceMasked(Defence::kCutBeforeNext)) {
      late_copy_ = copy;  // copied when the first pull asks for it
    } else {
      Do(CopyForCut{*copy});
    }
  }
  ++counters_.cuts;
  recheck_cut_ = recheck_parked_ = recheck_closes_ = recheck_pulls_ = true;
}

}  // namespace starling
