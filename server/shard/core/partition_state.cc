#include "server/shard/core/partition_state.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "common/base/status_macros.h"
#include "common/placement/layout.h"
#include "common/protocol/frame.h"
#include "common/protocol/limits.h"

namespace starling {
namespace {

template <typename T>
void Remember(std::vector<T>& last, T value, size_t most) {
  last.reserve(most);
  if (last.size() == most) last.erase(last.begin());
  last.push_back(value);
}

}  // namespace

PartitionState::PartitionState(const PartitionConfig* config) : PartitionState(config, Empty()) {
  if (config->start.has_value()) Begin(*config->start);
}

PartitionState::PartitionState(const PartitionConfig* config, Empty) : config_(config) {
  policy_.policy = config->policy;
  for (const PartitionConfig::SliceInfo& info : config->slices) {
    slices_.try_emplace(info.id, &info, updated_slices_);
    updated_slices_ += info.updated ? 1 : 0;
  }
  OpenCoverage(0);
}

// As the steps before have left it.
void PartitionState::Begin(const PartitionConfig::Start& start) {
  policy_ = start.policy;
  clocks_.ParkAll(static_cast<Clock>(start.step));
  next_decision_ = static_cast<Clock>(start.step);
  loss_scale_ = start.loss_scale;
  loss_scale_log2_ = {start.loss_scale.log2, start.loss_scale.log2};
  copy_ = start.copy;
  cut_epochs_ = static_cast<uint32_t>(start.step / config_->FullSteps());
  if (cut_epochs_ > 0) applied_min_ = applied_max_ = config_->StepsIn(cut_epochs_ - 1);
  OpenCoverage(cut_epochs_);
  const uint64_t open = start.step % config_->FullSteps();
  if (updated_slices_ > 0) all_covered_.at(cut_epochs_).MarkRange(0, open);
  for (auto& [id, slice] : slices_) {
    if (!slice.info->updated) continue;
    slice.state.updates = start.step;
    slice.state.updates_in_epoch = open;
    slice.state.skipped = start.skipped;
  }
}

absl::Status PartitionState::Repeat(const Record& record, uint64_t digest) {
  STARLING_RETURN_IF_ERROR(Check(record));
  lsn_ = record.lsn;
  view_ = record.view;
  digest_ = digest;
  switch (record.kind) {
    case RecordKind::kApply: Apply(record); break;
    case RecordKind::kClose: Close(record); break;
    case RecordKind::kDecision: Decide(record); break;
    case RecordKind::kRoster:
      roster_ = record.roster.number;
      clocks_.TakeRoster(record.roster);
      break;
    case RecordKind::kPolicy: SwitchPolicy(record); break;
    case RecordKind::kCut: Cut(record); break;
  }
  return absl::OkStatus();
}

void PartitionState::Apply(const Record& record) {
  IndexedSlice& slice = slices_.at(record.slice);
  SliceState& state = slice.state;
  ++state.updates;
  ++state.updates_in_epoch;
  state.skipped += record.skipped ? 1 : 0;
  state.version_lsn[state.updates % 2] = record.lsn;
  if (!bsp()) {
    Remember(state.recent, record.lsn, limits::kSliceUpdatesRemembered);
    Remember(lags_, record.scalars.lag, kLagsRemembered);
  }
  if (config_->KeepsLossScale() && record.slice == kLossScaleSlice) {
    loss_scale_ = record.loss_scale;
    loss_scale_log2_[state.updates % 2] = record.loss_scale.log2;
  }
  MarkCovered(slice, record.work.epoch, config_->ItemOf(record.work));
}

void PartitionState::MarkCovered(const IndexedSlice& slice, uint32_t epoch, uint64_t item) {
  if (CoversItem(slice, epoch, item)) return;  // counted twice, because a defence is masked
  const auto partly = partly_covered_.try_emplace({epoch, item}).first;
  partly->second.resize(SliceWords());
  partly->second[slice.index / 64] |= uint64_t{1} << (slice.index % 64);
  if (CountOf(partly->second) < updated_slices_) return;
  partly_covered_.erase(partly);
  all_covered_.try_emplace(epoch, config_->StepsIn(epoch)).first->second.Mark(item);
}

uint32_t PartitionState::CountOf(const SliceBits& slices) {
  uint32_t count = 0;
  for (const uint64_t word : slices) count += static_cast<uint32_t>(std::popcount(word));
  return count;
}

void PartitionState::Close(const Record& record) {
  const ReplicaId id = record.origin.replica;
  bool active = clocks_.Find(id)->active;
  if (record.flags & frame_flags::kEnter) active = true;
  if (record.flags & frame_flags::kPark) active = false;
  clocks_.Set(id, record.clock, active);
}

void PartitionState::SwitchPolicy(const Record& record) {
  was_bsp_ = bsp();
  policy_ = record.policy;
  lags_.clear();
  // This clock is beyond every member's. Each member enters again under the new policy.
  clocks_.ParkAll(static_cast<Clock>(policy_.step));
  if (bsp()) next_decision_ = static_cast<Clock>(policy_.step);
}

void PartitionState::Decide(const Record& record) {
  decided_ = {record.clock, record.scalars.scale, std::nullopt};
  if (record.skipped) decided_->skipped = record.origin;
  next_decision_ = record.clock + 1;
}

void PartitionState::Cut(const Record& record) {
  const uint32_t epoch = record.work.epoch;
  applied_min_ =
      updated_slices_ == 0 ? config_->StepsIn(epoch) : std::numeric_limits<uint64_t>::max();
  applied_max_ = updated_slices_ == 0 ? config_->StepsIn(epoch) : 0;
  for (const auto& [id, slice] : slices_) {
    if (!slice.info->updated) continue;
    applied_min_ = std::min(applied_min_, slice.state.updates_in_epoch);
    applied_max_ = std::max(applied_max_, slice.state.updates_in_epoch);
  }
  if (config_->NeedsCopy(epoch)) {
    copy_ = epoch;
    copy_lsn_ = record.lsn;
  }
  cut_epochs_ = epoch + 1;
  OpenCoverage(cut_epochs_);
}

void PartitionState::OpenCoverage(uint32_t epoch) {
  absl::erase_if(all_covered_, [epoch](const auto& coverage) { return coverage.first < epoch; });
  absl::erase_if(partly_covered_, [epoch](const auto& item) { return item.first.first < epoch; });
  Coverage& all = all_covered_.try_emplace(epoch, config_->StepsIn(epoch)).first->second;
  if (updated_slices_ == 0) all.MarkRange(0, all.items());
  for (auto& [id, slice] : slices_) slice.state.updates_in_epoch = 0;
}

uint64_t PartitionState::recent_lag() const {
  return lags_.empty() ? 0 : *std::max_element(lags_.begin(), lags_.end());
}

uint64_t PartitionState::LeastUpdates() const {
  if (updated_slices_ == 0) return std::min(config_->steps, cut_epochs_ * config_->FullSteps());
  uint64_t least = config_->steps;
  for (const auto& [id, slice] : slices_) {
    if (slice.info->updated) least = std::min(least, slice.state.updates);
  }
  return least;
}

int64_t PartitionState::NextT(SliceId id) const {
  const SliceState& state = slice(id);
  const uint64_t before = config_->start.has_value() ? config_->start->updates_before : 0;
  return static_cast<int64_t>(before + state.updates - state.skipped + 1);
}

// Updates after `base` are a suffix of the remembered ones.
uint64_t PartitionState::LagOf(SliceId id, Lsn base) const {
  const std::vector<Lsn>& recent = slice(id).recent;
  const auto first_after = std::upper_bound(recent.begin(), recent.end(), base);
  return static_cast<uint64_t>(recent.end() - first_after);
}

bool PartitionState::Covers(SliceId id, uint32_t epoch, uint64_t item) const {
  return epoch < cut_epochs_ || CoversItem(slices_.at(id), epoch, item);
}

bool PartitionState::CoversItem(const IndexedSlice& slice, uint32_t epoch, uint64_t item) const {
  const Coverage* all = CoverageOf(epoch);
  if (all != nullptr && all->Has(item)) return true;
  const auto partly = partly_covered_.find({epoch, item});
  return partly != partly_covered_.end() &&
         (partly->second[slice.index / 64] >> (slice.index % 64) & 1) != 0;
}

bool PartitionState::AllCover(uint32_t epoch, uint64_t item) const {
  if (epoch < cut_epochs_) return true;
  const Coverage* all = CoverageOf(epoch);
  return all != nullptr && all->Has(item);
}

bool PartitionState::Complete(uint32_t epoch) const {
  const Coverage* all = CoverageOf(epoch);
  return all != nullptr && all->complete();
}

uint64_t PartitionState::CoveredSteps() const {
  const Coverage* all = CoverageOf(cut_epochs_);
  const uint64_t open = all == nullptr ? 0 : all->floor();
  return std::min(config_->steps, cut_epochs_ * config_->FullSteps() + open);
}

const Coverage* PartitionState::CoverageOf(uint32_t epoch) const {
  const auto it = all_covered_.find(epoch);
  return it == all_covered_.end() ? nullptr : &it->second;
}

size_t PartitionState::OpenItems(uint32_t epoch) const {
  const Coverage* all = CoverageOf(epoch);
  return partly_covered_.size() + (all == nullptr ? 0 : all->ranges().size());
}

bool PartitionState::IsOpen(uint32_t epoch, uint64_t item) const {
  return partly_covered_.contains({epoch, item});
}

uint64_t PartitionState::skipped_steps() const {
  return config_->KeepsLossScale() ? slice(kLossScaleSlice).skipped : 0;
}

}  // namespace starling
