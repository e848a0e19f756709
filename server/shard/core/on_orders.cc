// The coordinator's orders: views, rosters, policies, epochs. docs/protocol.md, section 5.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

void Partition::On(const OrdersReceived& orders) {
  if (orders.generation < generation_ && !DefenceMasked(Defence::kGeneration)) return;
  generation_ = std::max(generation_, orders.generation);
  if (orders.view > view_) TakeView(orders);
  if (!IsPrimary()) return;  // another shard is the primary
  TakeCheckpoint(orders);
  if (orders.roster.number > ordered_.roster()) TakeRoster(orders.roster);
  TakePolicies(orders);
  TakeEpoch(orders);
}

void Partition::TakeView(const OrdersReceived& orders) {
  const bool led = IsPrimary();
  view_ = orders.view;
  primary_ = orders.primary;
  backup_ = orders.backup;
  backup_address_ = orders.backup_address;
  recheck_parked_ = true;
  if (IsPrimary()) {
    if (!led) Lead();
    return BeginTalk();
  }
  if (primary_ != config_.self || !fault_.empty()) return;
  fault_ = absl::StrCat("view ", view_.value, " has this copy as its primary, and it is not whole");
  log_stopped_ = true;
  Do(ReportFault{fault_, Origin()});
}

// This copy becomes the primary. What it has as a backup is committed, since both copies had it.
void Partition::Lead() {
  if (since_.value == 0 && ordered_.lsn().value > 0) ++counters_.promotions;
  since_ = view_;
  if (decider_.has_value()) decider_->BeginAt(ordered_.next_decision());
  recheck_closes_ = recheck_cut_ = recheck_policy_ = true;
  Advance();
}

void Partition::TakeRoster(const RosterList& roster) {
  Record record;
  record.kind = RecordKind::kRoster;
  record.roster = roster;
  Order(std::move(record), BufferId(), {});
  for (auto& [id, slice] : slices_) slice.lateness.Forget();
  absl::erase_if(streams_, [this](const auto& stream) {
    return ordered_.clocks().Find(stream.first) == nullptr;
  });
  if (!DefenceMasked(Defence::kIncarnationFence)) {
    RefuseStrangers(absl::StrCat("not in roster ", roster.number.value, ": register again"));
  }
  recheck_parked_ = recheck_closes_ = recheck_pulls_ = true;
}

void Partition::TakeEpoch(const OrdersReceived& orders) {
  decider_view_ = std::max(decider_view_, orders.decider);
  if (orders.epoch > open_epoch_) {
    open_epoch_ = orders.epoch;
    recheck_parked_ = true;
  }
  discard_cuts_before_ = std::max(discard_cuts_before_, orders.discard_cuts_before);
  recheck_cut_ = true;
  if (!orders.training_end.has_value() || training_end_.has_value()) return;
  training_end_ = orders.training_end;
  recheck_pulls_ = true;
}

void Partition::RefuseStrangers(const std::string& text) {
  const auto refused = [&](const Waiter& waiter) {
    if (IsReaderPull(waiter.request) || ordered_.clocks().IsMember(waiter.request.origin))
      return false;
    Refuse(waiter, Answer::kStaleIncarnation, text, waiter.request.clock);
    return true;
  };
  for (auto& [replica, queue] : closes_) std::erase_if(queue, refused);
  absl::erase_if(closes_, [](const auto& queue) { return queue.second.empty(); });
  ErasePulls(refused);
}

}  // namespace starling
