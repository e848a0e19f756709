// A lease id encodes what the lease covers, so that a restarted coordinator, which knows nothing of
// leases, understands WorkerReport.leases_held. Unique within a job's era for 2,047 attempts.
#ifndef STARLING_SERVER_COORDINATOR_LEASES_LEASE_ID_H_
#define STARLING_SERVER_COORDINATOR_LEASES_LEASE_ID_H_

#include <cstdint>

#include "common/protocol/limits.h"
#include "proto/coordinator.pb.h"

namespace starling::coordinator {

// Bits, from the top: 1 purpose (1: evaluation), 11 attempt, 16 epoch, 36 item. Never 0, since
// attempts start at 1.
inline constexpr int kLeaseItemBits = 36;
inline constexpr int kLeaseEpochBits = 16;
inline constexpr int kLeaseAttemptBits = 11;
inline constexpr uint64_t kLeaseItemsMax = uint64_t{1} << kLeaseItemBits;
inline constexpr uint32_t kLeaseAttemptsMax = (1u << kLeaseAttemptBits) - 1;
static_assert(limits::kStepsPerEpochMax <= kLeaseItemsMax);
static_assert(1 + kLeaseAttemptBits + kLeaseEpochBits + kLeaseItemBits == 64);

constexpr uint64_t MakeLeaseId(Purpose purpose, uint32_t epoch, uint64_t item, uint32_t attempt) {
  const uint64_t low_epoch = epoch & ((1u << kLeaseEpochBits) - 1);
  const uint64_t low_attempt = (attempt - 1) % kLeaseAttemptsMax + 1;
  return (uint64_t{purpose == EVALUATE} << 63) |
         (low_attempt << (kLeaseItemBits + kLeaseEpochBits)) | (low_epoch << kLeaseItemBits) |
         (item & (kLeaseItemsMax - 1));
}

constexpr uint64_t LeaseItem(uint64_t id) { return id & (kLeaseItemsMax - 1); }

constexpr uint32_t LeaseAttempt(uint64_t id) {
  return static_cast<uint32_t>(id >> (kLeaseItemBits + kLeaseEpochBits)) & kLeaseAttemptsMax;
}

// Whether the lease belongs to this pass.
constexpr bool LeaseIsOf(uint64_t id, Purpose purpose, uint32_t epoch) {
  return id != 0 && LeaseAttempt(id) != 0 &&
         MakeLeaseId(purpose, epoch, LeaseItem(id), LeaseAttempt(id)) == id;
}

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_LEASES_LEASE_ID_H_
