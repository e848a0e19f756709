// Strong identifiers: swapped arguments do not compile. Plain values, freely copied.
#ifndef STARLING_COMMON_PROTOCOL_IDS_H_
#define STARLING_COMMON_PROTOCOL_IDS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>

namespace starling {

template <typename Tag, typename Rep>
struct Id {
  Rep value = 0;

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Id& id) {
    return H::combine(std::move(h), id.value);
  }
  friend std::ostream& operator<<(std::ostream& out, const Id& id) { return out << id.value; }
};

using JobUid = Id<struct JobUidTag, uint64_t>;            // never reused
using SliceId = Id<struct SliceIdTag, uint32_t>;          // index in the job's slices
using PartitionId = Id<struct PartitionIdTag, uint32_t>;  // index in the job's partitions
// The one that decides about whole steps of its job: docs/protocol.md, section 9.
inline constexpr PartitionId kDecidingPartition(0);
using ShardId = Id<struct ShardIdTag, uint32_t>;      // durable per shard name; 0: none
using WorkerId = Id<struct WorkerIdTag, uint32_t>;    // durable per worker name; 0: none
using ReplicaId = Id<struct ReplicaIdTag, uint32_t>;  // one copy of the model; 0: none
using LeaseId = Id<struct LeaseIdTag, uint64_t>;
using BufferId = Id<struct BufferIdTag, uint64_t>;  // a payload that the host holds; 0: none

using Incarnation = Id<struct IncarnationTag, uint64_t>;  // one registration of a process
using Generation = Id<struct GenerationTag, uint64_t>;    // one start of a coordinator
using ViewNumber = Id<struct ViewNumberTag, uint64_t>;
using RosterNumber = Id<struct RosterNumberTag, uint64_t>;
// Numbers a job's consistency policies; 0: the job file's.
using PolicyNumber = Id<struct PolicyNumberTag, uint32_t>;
// Position in a partition's log; 0: before the first.
using Lsn = Id<struct LsnTag, uint64_t>;

// Units of work that a replica has closed. A contribution stamped c belongs to unit c.
using Clock = int64_t;

}  // namespace starling

template <typename Tag, typename Rep>
struct std::hash<starling::Id<Tag, Rep>> {
  size_t operator()(const starling::Id<Tag, Rep>& id) const { return std::hash<Rep>()(id.value); }
};

#endif  // STARLING_COMMON_PROTOCOL_IDS_H_
