// The nouns of the protocol (docs/protocol.md), as plain values shared by the pure cores, the frame
// and the simulator. No I/O, no threads.
#ifndef STARLING_COMMON_PROTOCOL_TYPES_H_
#define STARLING_COMMON_PROTOCOL_TYPES_H_

#include <compare>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/protocol/ids.h"

namespace starling {

// One life of a job's parameters. Each restore or rollback increments the era, so that nothing from
// before it can count after it.
struct RunId {
  JobUid job;
  uint32_t era = 0;
  friend constexpr auto operator<=>(const RunId&, const RunId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const RunId& r) {
    return H::combine(std::move(h), r.job, r.era);
  }
};

enum class WorkPurpose : uint8_t { kNone = 0, kTrain = 1, kEvaluate = 2 };

// An aligned range of micro-batch ids in one epoch's pass: `count` is a power of two and divides
// `first`. With 2^k micro-batches per step, step s of the epoch is the range [s*2^k, (s+1)*2^k).
struct WorkRange {
  WorkPurpose purpose = WorkPurpose::kNone;
  uint32_t epoch = 0;
  uint64_t first = 0;
  uint32_t count = 0;
  friend constexpr auto operator<=>(const WorkRange&, const WorkRange&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const WorkRange& w) {
    return H::combine(std::move(h), w.purpose, w.epoch, w.first, w.count);
  }
};

// The idempotency key of a contribution (G1). Its sender and attempt are in Origin, for fencing and
// blame only.
struct ContributionKey {
  RunId run;
  SliceId slice;
  WorkRange work;
  friend constexpr auto operator<=>(const ContributionKey&, const ContributionKey&) = default;
};

struct Origin {
  ReplicaId replica;
  WorkerId worker;
  Incarnation incarnation;
  uint32_t attempt = 0;  // of the lease
  friend constexpr auto operator<=>(const Origin&, const Origin&) = default;
};

enum class PolicyKind : uint8_t { kBsp = 1, kSsp = 2, kAsync = 3 };

inline constexpr uint64_t kUnboundedStaleness = std::numeric_limits<uint64_t>::max();

struct ConsistencyPolicy {
  PolicyKind kind = PolicyKind::kBsp;
  uint32_t staleness = 0;  // SSP only
  uint64_t bound() const {
    return kind == PolicyKind::kAsync ? kUnboundedStaleness
           : kind == PolicyKind::kSsp ? staleness
                                      : 0;
  }
  friend constexpr auto operator<=>(const ConsistencyPolicy&, const ConsistencyPolicy&) = default;
};

// The job's policy with this number: for all global batches from `step` until the next policy's.
struct PolicyAt {
  PolicyNumber number;
  ConsistencyPolicy policy;
  uint64_t step = 0;
  friend constexpr auto operator<=>(const PolicyAt&, const PolicyAt&) = default;
};

struct RosterMember {
  ReplicaId replica;
  WorkerId worker;
  Incarnation incarnation;
  Clock joined = 0;  // lower bound of its first clock
  friend constexpr auto operator<=>(const RosterMember&, const RosterMember&) = default;
};

struct RosterList {
  RosterNumber number;
  std::vector<RosterMember> members;  // ascending replica
  friend bool operator==(const RosterList&, const RosterList&) = default;
};

// The primary's decisions for one update, computed once and written into the record, so that a
// backup repeats them.
struct UpdateScalars {
  float rate = 0;    // learning rate of the contribution's step, for the slice's group
  float scale = 1;   // B / samples, for a short batch
  double decay = 0;  // weight decay of the slice's group
  int64_t t = 0;     // Adam's step: updates of this slice including this one, without skipped ones
  uint64_t lag = 0;  // updates of this slice between the pull it was computed from and now
  friend bool operator==(const UpdateScalars&, const UpdateScalars&) = default;
};

}  // namespace starling

#endif  // STARLING_COMMON_PROTOCOL_TYPES_H_
