// A shard's current orders, assembled from the changes that the coordinator sends
// (docs/protocol.md, section 5). Pure: no I/O, no clock.
#ifndef STARLING_COMMON_CONTROL_SHARD_ORDERS_H_
#define STARLING_COMMON_CONTROL_SHARD_ORDERS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "proto/coordinator.pb.h"

namespace starling {

// Not thread-safe.
class ShardOrderBook {
 public:
  struct Changes {
    std::vector<ShardJob> jobs;  // changed jobs, whole; `job` is set only once per run
    std::vector<Run> dropped;    // to drop entirely, with what is here of earlier eras
  };

  // Takes orders that are newer than all taken before, and for the same incarnation. Those for an
  // earlier era of a job that is known change nothing.
  Changes Take(const ShardOrders& orders);

  // A new incarnation holds nothing.
  void Clear() { jobs_.clear(); }

  // The orders for running jobs, by job uid, without descriptions.
  const std::map<uint64_t, ShardJob>& jobs() const { return jobs_; }

 private:
  std::map<uint64_t, ShardJob> jobs_;
};

}  // namespace starling

#endif  // STARLING_COMMON_CONTROL_SHARD_ORDERS_H_
