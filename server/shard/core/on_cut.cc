// The end of an epoch: when every slice covers every item, the values are the epoch's result.
// docs/protocol.md, section 4.
#include <algorithm>
#include <limits>
#include <utility>

#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

// After the last epoch the values themselves are its copy.
bool Partition::NeedsCopy(uint32_t epoch) const {
  return config_.evaluates_at(epoch) && epoch + 1 < config_.Epochs();
}

void Partition::TryCut(PartitionActions& actions) {
  const uint32_t epoch = cut_epochs_;
  if (cut_ordered_ || epoch >= config_.Epochs() || epoch > open_epoch_ || view_.value == 0) return;
  if (updated_slices_ != 0 && !all_covered_.at(epoch).complete()) return;
  // While the last copy is evaluated, its memory is in use: orders will say when it is not.
  if (NeedsCopy(epoch) && copy_.has_value() && *copy_ >= discard_cuts_before_) return;
  cut_ordered_ = true;
  Record record;
  record.kind = RecordKind::kCut;
  record.work.purpose = WorkPurpose::kTrain;
  record.work.epoch = epoch;
  Order(std::move(record), BufferId(), {}, actions);
}

void Partition::CommitCut(const Record& record, PartitionActions& actions) {
  const uint32_t epoch = record.work.epoch;
  applied_min_ =
      updated_slices_ == 0 ? config_.StepsIn(epoch) : std::numeric_limits<uint64_t>::max();
  applied_max_ = updated_slices_ == 0 ? config_.StepsIn(epoch) : 0;
  for (const auto& [id, slice] : slices_) {
    if (!slice.info.updated) continue;
    applied_min_ = std::min(applied_min_, slice.applied_in_epoch);
    applied_max_ = std::max(applied_max_, slice.applied_in_epoch);
  }
  if (NeedsCopy(epoch)) {
    if (copy_.has_value()) actions.push_back(DropCopy{*copy_});
    copy_ = epoch;
    copy_lsn_ = record.lsn;
    if (DefenceMasked(Defence::kCutBeforeNext)) {
      late_copy_ = epoch;  // whenever somebody asks
    } else {
      actions.push_back(CopyForCut{epoch});
    }
  }
  cut_ordered_ = false;
  cut_epochs_ = epoch + 1;
  ++counters_.cuts;
  OpenCoverage(cut_epochs_);
  recheck_cut_ = recheck_parked_ = recheck_closes_ = recheck_pulls_ = true;
}

void Partition::OpenCoverage(uint32_t epoch) {
  absl::erase_if(all_covered_, [epoch](const auto& coverage) { return coverage.first < epoch; });
  absl::erase_if(partly_covered_, [epoch](const auto& item) { return item.first.first < epoch; });
  all_covered_.try_emplace(epoch, config_.StepsIn(epoch));
  for (auto& [id, slice] : slices_) slice.applied_in_epoch = 0;
}

}  // namespace starling
