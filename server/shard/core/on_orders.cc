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
  if (primary_ != config_.self) return;  // another shard is the primary
  if (orders.roster.number > ordered_.roster()) TakeRoster(orders.roster);
  TakePolicies(orders);
  TakeEpoch(orders);
}

void Partition::TakeView(const OrdersReceived& orders) {
  view_ = orders.view;
  primary_ = orders.primary;
  backup_ = orders.backup;
  if (primary_ != config_.self) {
    StepDown(absl::StrCat("view ", view_.value, " is on shard ", primary_.value));
  } else if (backup_.value ==
             0) {  // the coordinator has made it durable that this copy stands alone
    log_.CommitUpTo(log_.ordered());
    Advance();
  }
  recheck_parked_ = true;
}

// Another shard is the primary now. Uncommitted records never happened; the peers send that work to
// the new primary. Committed records take effect both here and there.
void Partition::StepDown(const std::string& text) {
  RefuseWaiting(Answer::kStaleView, text, /*all=*/true);
  const auto refuse = [&](const Waiters& waiters, BufferId payload) {
    for (const Waiter& waiter : waiters)
      Refuse(waiter, Answer::kStaleView, text, waiter.request.clock);
    if (payload.value != 0) Do(Release{payload});
  };
  for (PartitionLog::Entry& entry : log_.DropUncommitted()) {
    if (in_flight_.contains(entry.payload)) entry.waiters = TakeInFlight(entry.payload).waiters;
    refuse(entry.waiters, entry.payload);
  }
  RefuseHeld(Answer::kStaleView, text);
  for (auto& [id, slice] : slices_) {
    refuse(std::exchange(slice.unsealed, {}), BufferId());
    for (const BufferId part : slice.tree.Clear()) Do(Release{part});
    slice.overflowed.reset();
  }
  for (const auto& [partition, waiter] : std::exchange(reporters_, {}))
    refuse({waiter}, BufferId());
  ordered_ = applied_;
  for (const PartitionLog::Entry& entry : log_.pending())
    MustRepeat(entry.record, entry.digest, ordered_);
  if (decider_.has_value()) decider_->BeginAt(ordered_.next_decision());
}

void Partition::TakeRoster(const RosterList& roster) {
  Record record;
  record.kind = RecordKind::kRoster;
  record.roster = roster;
  Order(std::move(record), BufferId(), {});
  absl::erase_if(streams_, [this](const auto& stream) {
    return ordered_.clocks().Find(stream.first) == nullptr;
  });
  if (!DefenceMasked(Defence::kIncarnationFence)) {
    RefuseWaiting(Answer::kStaleIncarnation,
                  absl::StrCat("not in roster ", roster.number.value, ": register again"),
                  /*all=*/false);
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

void Partition::RefuseWaiting(Answer answer, const std::string& text, bool all) {
  const auto refused = [&](const Waiter& waiter) {
    if (!all && (IsReaderPull(waiter.request) || ordered_.clocks().IsMember(waiter.request.origin)))
      return false;
    Refuse(waiter, answer, text, waiter.request.clock);
    return true;
  };
  for (auto& [replica, queue] : closes_) std::erase_if(queue, refused);
  absl::erase_if(closes_, [](const auto& queue) { return queue.second.empty(); });
  ErasePulls(refused);
}

}  // namespace starling
