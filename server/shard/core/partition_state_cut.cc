// Whether a partition's state is that of a step, so that a checkpoint can be taken:
// docs/decisions/0013-checkpoints.md, part 1.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/defences.h"
#include "server/shard/core/partition_state.h"

namespace starling {

bool PartitionState::Passed(uint64_t step) const {
  if (updated_slices_ == 0) return false;
  const uint64_t begin = cut_epochs_ * config_->FullSteps();  // of the open epoch
  uint64_t end = all_covered_.at(cut_epochs_).End();
  if (!partly_covered_.empty()) end = std::max(end, partly_covered_.rbegin()->first.second + 1);
  return begin + end > step;
}

absl::StatusOr<CutState> PartitionState::AtCut(uint64_t step) const {
  CutState cut{.step = step};
  // One that updates nothing cuts an epoch when it is opened.
  const bool over = copy_.has_value() && (*copy_ + uint64_t{1}) * config_->FullSteps() <= step;
  if (over) cut.copy = copy_;
  if (updated_slices_ == 0) return cut;  // it has the same values at all steps
  if (!DefenceMasked(Defence::kCheckpointBoundary)) STARLING_RETURN_IF_ERROR(CheckCutAt(step));
  for (const auto& [id, slice] : slices_) {
    if (slice.info->updated) cut.skipped = slice.state.skipped;
  }
  if (config_->KeepsLossScale()) cut.loss_scale = loss_scale_;
  return cut;
}

absl::Status PartitionState::CheckCutAt(uint64_t step) const {
  const auto is_not = [&](auto... text) {
    return absl::FailedPreconditionError(absl::StrCat("partition ", config_->partition.value,
                                                      " is not at step ", step, ": ", text...));
  };
  const IndexedSlice* first = nullptr;
  for (const auto& [id, slice] : slices_) {
    if (!slice.info->updated) continue;
    if (first == nullptr) first = &slice;
    if (slice.state.updates != step)
      return is_not("slice ", id.value, " has ", slice.state.updates, " updates");
    if (slice.state.skipped != first->state.skipped) {
      return is_not("slice ", id.value, " skipped ", slice.state.skipped, " of them, slice ",
                    first->info->id.value, " ", first->state.skipped);
    }
  }
  const uint64_t epochs = step / config_->FullSteps();
  if (cut_epochs_ != epochs) return is_not(cut_epochs_, " epochs are cut; expected ", epochs);
  const Coverage& all = all_covered_.at(cut_epochs_);
  const uint64_t open = step % config_->FullSteps();
  if (all.floor() != open || !all.ranges().empty() || !partly_covered_.empty()) {
    return is_not(all.floor(), " steps of epoch ", cut_epochs_, " are covered, and ",
                  OpenItems(cut_epochs_), " beyond; expected ", open, ", and none");
  }
  return absl::OkStatus();
}

}  // namespace starling
