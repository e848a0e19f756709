// CLOSE: a replica's clock ticks, or it enters, skips, parks. docs/protocol.md, section 3.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

void Partition::OnClose(const FrameReceived& frame, PartitionActions& actions) {
  const FrameHeader& header = frame.header;
  std::deque<Waiter>& queue = closes_[header.origin.replica];
  recheck_closes_ = true;
  for (Waiter& waiter : queue) {
    if (waiter.request.flags != header.flags || waiter.request.clock != header.clock) continue;
    waiter = {frame.connection, header};  // sent again, on a new stream
    return;
  }
  if (queue.size() >= limits::kWaitingClosesPerReplicaMax) {
    return Refuse(frame,
                  {Verdict::kRefuse, Answer::kOverBudget,
                   absl::StrCat(queue.size(), " closes of this replica wait already: try again")},
                  actions);
  }
  queue.push_back({frame.connection, header});
}

void Partition::TryCloses(PartitionActions& actions) {
  for (auto& [id, queue] : closes_) {
    for (bool progress = true; progress;) {
      progress = false;
      const ClockTable::Replica* replica = clocks_.Find(id);
      if (replica == nullptr) break;
      bool behind_others = false;
      for (auto it = queue.begin(); it != queue.end(); ++it) {
        if (!CloseIsReady(*replica, it->request, behind_others)) {
          behind_others = true;
          continue;
        }
        const Waiter ready = std::move(*it);
        queue.erase(it);
        OrderClose(id, ready, actions);
        progress = true;
        break;
      }
    }
  }
}

bool Partition::CloseIsReady(const ClockTable::Replica& replica, const FrameHeader& request,
                             bool behind_others) const {
  // Who parks leaves the minimum, so the updates that it closed before must be there.
  if (request.flags & frame_flags::kPark) return !behind_others;
  if (request.flags & (frame_flags::kEnter | frame_flags::kSkip)) return true;
  if (request.clock < replica.clock) return true;
  return request.clock == replica.clock &&
         AllCover(request.key.work.epoch, ItemOf(request.key.work));
}

Clock Partition::EnterClock(ReplicaId id) const {
  if (bsp()) return static_cast<Clock>(LeastSealed());
  const ClockTable::Replica& replica = *clocks_.Find(id);
  const Clock own = std::max(replica.member.joined, replica.clock);
  return DefenceMasked(Defence::kJoinerClock) ? replica.clock : std::max(own, clocks_.min());
}

// What a skip may name: where the replica may stand at another partition. It is ahead there by what
// it closed in the open epoch, and by closes of the epoch before that are still on their way here.
Clock Partition::SkipClockMax(const ClockTable::Replica& replica) const {
  Clock reached = std::max({replica.clock, replica.member.joined, clocks_.max()});
  if (bsp()) reached = std::max(reached, static_cast<Clock>(LeastSealed()));
  return reached + static_cast<Clock>(config_.StepsIn(open_epoch_)) +
         static_cast<Clock>(limits::kWaitingClosesPerReplicaMax);
}

void Partition::OrderClose(ReplicaId id, const Waiter& waiter, PartitionActions& actions) {
  const FrameHeader& request = waiter.request;
  const ClockTable::Replica& replica = *clocks_.Find(id);
  Clock clock = request.clock;
  bool changes = clock == replica.clock;
  if (request.flags & frame_flags::kEnter) {
    clock = EnterClock(id);
    changes = !replica.active || clock != replica.clock;
  } else if (request.flags & frame_flags::kSkip) {
    if (const Clock most = SkipClockMax(replica); clock > most) {
      return Refuse(waiter, Answer::kBadFrame,
                    absl::StrCat("skip to clock ", clock, "; the replica is at ", replica.clock,
                                 " here, and no partition can have it beyond ", most),
                    actions, replica.clock);
    }
    changes = clock > replica.clock;
  } else if (request.flags & frame_flags::kPark) {
    clock = replica.clock;
    changes = replica.active;
  }
  if (!changes) return Ack(waiter, Answer::kAlreadyCounted, log_.applied(), replica.clock, actions);
  Record record;
  record.kind = RecordKind::kClose;
  record.work = request.key.work;
  record.origin = request.origin;
  record.clock = clock;
  record.flags = request.flags;
  Order(std::move(record), BufferId(), {waiter}, actions);
}

void Partition::CommitClose(const PartitionLog::Entry& entry, PartitionActions& actions) {
  const Record& record = entry.record;
  const ClockTable::Replica* replica = clocks_.Find(record.origin.replica);
  if (replica == nullptr) return;  // a later roster is without it
  if (!clocks_.IsMember(record.origin) && !DefenceMasked(Defence::kIncarnationFence)) return;
  Clock clock = std::max(replica->clock, record.clock);
  bool active = replica->active;
  if (record.flags & frame_flags::kEnter) {
    active = true;
    clock = record.clock;
  } else if (record.flags & frame_flags::kPark) {
    active = false;
  } else if ((record.flags & frame_flags::kSkip) == 0) {
    clock = std::max(replica->clock, record.clock + 1);
  }
  clocks_.Set(record.origin.replica, clock, active);
  recheck_pulls_ = true;
  recheck_closes_ = true;
  for (const Waiter& waiter : entry.waiters)
    Ack(waiter, Answer::kCounted, record.lsn, clock, actions);
}

}  // namespace starling
