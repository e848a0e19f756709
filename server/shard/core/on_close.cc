// CLOSE: a replica's clock ticks, or the replica enters, skips or parks. docs/protocol.md, section
// 3.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

void Partition::OnClose(const FrameReceived& frame) {
  const FrameHeader& header = frame.header;
  if (log_stopped_) return Refuse(frame, {Verdict::kRefuse, Answer::kStopped, fault_});
  std::deque<Waiter>& queue = closes_[header.origin.replica];
  recheck_closes_ = true;
  for (Waiter& waiter : queue) {
    if (waiter.request.flags != header.flags || waiter.request.clock != header.clock) continue;
    waiter = {frame.connection, header};  // sent again on a new stream
    return;
  }
  if (queue.size() >= limits::kWaitingClosesPerReplicaMax) {
    return Refuse(frame, {Verdict::kRefuse, Answer::kOverBudget,
                          absl::StrCat(queue.size(),
                                       " closes of this replica are already waiting: try again")});
  }
  queue.push_back({frame.connection, header});
}

// While an ordered policy has not taken effect, closes under the previous one wait for it.
void Partition::TryCloses() {
  if (ordered_.policy().number != applied_.policy().number) return;
  for (auto& [id, queue] : closes_) {
    for (bool progress = true; progress;) {
      progress = false;
      const ClockTable::Replica* replica = ordered_.clocks().Find(id);
      if (replica == nullptr) break;
      bool behind_others = false;
      for (auto it = queue.begin(); it != queue.end(); ++it) {
        if (!CloseIsReady(*replica, it->request, behind_others)) {
          behind_others = true;
          continue;
        }
        const Waiter ready = std::move(*it);
        queue.erase(it);
        OrderClose(id, ready);
        progress = true;
        break;
      }
    }
  }
}

bool Partition::CloseIsReady(const ClockTable::Replica& replica, const FrameHeader& request,
                             bool behind_others) const {
  // A parked replica does not count for the minimum, so all updates that it closed must be there
  // first.
  if (request.flags & frame_flags::kPark) return !behind_others;
  if (request.flags & (frame_flags::kEnter | frame_flags::kSkip)) return true;
  if (request.clock < replica.clock) return true;
  return request.clock == replica.clock &&
         ordered_.AllCover(request.key.work.epoch, config_.ItemOf(request.key.work));
}

Clock Partition::EnterClock(ReplicaId id) const {
  if (ordered_.bsp()) return static_cast<Clock>(ordered_.LeastUpdates());
  const ClockTable::Replica& replica = *ordered_.clocks().Find(id);
  const Clock own = std::max(replica.member.joined, replica.clock);
  return DefenceMasked(Defence::kJoinerClock) ? replica.clock
                                              : std::max(own, ordered_.clocks().min());
}

// The highest clock that a skip may name: where the replica may be at another partition. It may be
// ahead there by what it closed in the open epoch, and by closes of the previous epoch that are
// still on their way here.
Clock Partition::SkipClockMax(const ClockTable::Replica& replica) const {
  Clock reached = std::max({replica.clock, replica.member.joined, ordered_.clocks().max()});
  if (ordered_.bsp()) reached = std::max(reached, static_cast<Clock>(ordered_.LeastUpdates()));
  return reached + static_cast<Clock>(config_.StepsIn(open_epoch_)) +
         static_cast<Clock>(limits::kWaitingClosesPerReplicaMax);
}

void Partition::OrderClose(ReplicaId id, const Waiter& waiter) {
  const FrameHeader& request = waiter.request;
  const ClockTable::Replica& replica = *ordered_.clocks().Find(id);
  Clock clock = request.clock + 1;
  bool changes = request.clock == replica.clock;
  if (request.flags & frame_flags::kEnter) {
    clock = EnterClock(id);
    changes = !replica.active || clock != replica.clock;
  } else if (request.flags & frame_flags::kSkip) {
    clock = request.clock;
    if (const Clock most = SkipClockMax(replica); clock > most) {
      return Refuse(waiter, Answer::kBadFrame,
                    absl::StrCat("skip to clock ", clock, "; the replica is at ", replica.clock,
                                 " here, and no partition can have it beyond ", most),
                    replica.clock);
    }
    changes = clock > replica.clock;
  } else if (request.flags & frame_flags::kPark) {
    clock = replica.clock;
    changes = replica.active;
  }
  if (!changes) return AnswerKnownClose(id, waiter);
  Record record;
  record.kind = RecordKind::kClose;
  record.origin = request.origin;
  record.clock = clock;
  record.flags = request.flags;
  Order(std::move(record), BufferId(), {waiter});
}

// The close changes nothing in the ordered state. But a close that is not committed yet must not be
// acked.
void Partition::AnswerKnownClose(ReplicaId id, const Waiter& waiter) {
  PartitionLog::Entry* newest = nullptr;
  for (PartitionLog::Entry& entry : log_.pending()) {
    if (entry.record.kind == RecordKind::kClose && entry.record.origin.replica == id)
      newest = &entry;
  }
  if (newest == nullptr) {
    const Clock clock = ordered_.clocks().Find(id)->clock;
    return Ack(waiter, Answer::kAlreadyCounted, log_.applied(), clock);
  }
  if (AddWaiter(newest->waiters, waiter, limits::kJoinedRetriesMax)) return;
  Refuse(
      waiter, Answer::kOverBudget,
      absl::StrCat(newest->waiters.size(), " closes are already waiting for this one: try again"),
      waiter.request.clock);
}

void Partition::FinishClose(const PartitionLog::Entry& entry) {
  recheck_pulls_ = true;
  recheck_closes_ = true;
  for (const Waiter& waiter : entry.waiters)
    Ack(waiter, Answer::kCounted, entry.record.lsn, entry.record.clock);
}

}  // namespace starling
