// The members of a partition's roster with their clocks: docs/protocol.md, section 3.
#ifndef STARLING_SERVER_SHARD_CORE_CLOCK_TABLE_H_
#define STARLING_SERVER_SHARD_CORE_CLOCK_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/container/btree_map.h"
#include "common/base/byte_io.h"
#include "common/protocol/types.h"

namespace starling {

struct ReplicaClock {
  RosterMember member;
  Clock clock = 0;      // units closed
  bool active = false;  // counts for the minimum; false: parked
};

// Not thread-safe.
class ClockTable {
 public:
  using Replica = ReplicaClock;

  // New members, and new incarnations of old ones, start parked. Members that are not listed are
  // removed.
  void TakeRoster(const RosterList& roster) {
    absl::btree_map<ReplicaId, Replica> next;
    for (const RosterMember& member : roster.members) {
      Replica& replica = next[member.replica];
      replica.member = member;
      const auto old = replicas_.find(member.replica);
      if (old == replicas_.end()) continue;
      replica.clock = old->second.clock;
      replica.active = old->second.active && old->second.member.incarnation == member.incarnation;
    }
    replicas_ = std::move(next);
    Recompute();
  }

  // Null: no such replica.
  const Replica* Find(ReplicaId id) const {
    const auto it = replicas_.find(id);
    return it == replicas_.end() ? nullptr : &it->second;
  }
  // Whether this incarnation of the worker is a member.
  bool IsMember(const Origin& origin) const {
    const Replica* replica = Find(origin.replica);
    return replica != nullptr && replica->member.worker == origin.worker &&
           replica->member.incarnation == origin.incarnation;
  }

  // The replica is a member.
  void Set(ReplicaId id, Clock clock, bool active) {
    Replica& replica = replicas_.at(id);
    replica.clock = clock;
    replica.active = active;
    Recompute();
  }

  // Sets all clocks to `clock` and parks all replicas.
  void ParkAll(Clock clock) {
    for (auto& [id, replica] : replicas_) {
      replica.clock = clock;
      replica.active = false;
    }
    any_active_ = false;
    min_ = max_ = clock;
  }

  bool any_active() const { return any_active_; }
  // Over the active replicas; if none is active, as of the last time that one was.
  Clock min() const { return min_; }
  Clock max() const { return max_; }
  // How far a replica that computes at `clock` is ahead of the slowest other active replica.
  uint64_t Lead(ReplicaId id, Clock clock) const {
    Clock lead = 0;
    for (const auto& [other, replica] : replicas_) {
      if (replica.active && other != id) lead = std::max(lead, clock - replica.clock);
    }
    return static_cast<uint64_t>(lead);
  }
  const absl::btree_map<ReplicaId, Replica>& replicas() const { return replicas_; }

  template <typename IO, LikeType<ClockTable> T>
  friend void Fields(IO& io, T& table) {
    io(table.min_, table.max_, table.replicas_);
    if constexpr (!std::is_const_v<T>) table.Recompute();
  }

 private:
  void Recompute() {
    any_active_ = false;
    for (const auto& [id, replica] : replicas_) {
      if (!replica.active) continue;
      min_ = any_active_ ? std::min(min_, replica.clock) : replica.clock;
      max_ = any_active_ ? std::max(max_, replica.clock) : replica.clock;
      any_active_ = true;
    }
  }

  absl::btree_map<ReplicaId, Replica> replicas_;
  bool any_active_ = false;
  Clock min_ = 0;
  Clock max_ = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_CLOCK_TABLE_H_
