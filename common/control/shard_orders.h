// What a coordinator orders a shard, put together from the changes that it sends (docs/protocol.md,
// section 5). Pure: no I/O, no clock.
#ifndef STARLING_COMMON_CONTROL_SHARD_ORDERS_H_
#define STARLING_COMMON_CONTROL_SHARD_ORDERS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "proto/coordinator.pb.h"

namespace starling {

// One thread at a time.
class ShardOrderBook {
 public:
  struct Changes {
    std::vector<ShardJob> jobs;     // that changed, whole, but for `job`: it is there once per run
    std::vector<uint64_t> dropped;  // uids of jobs of which nothing is kept
  };

  // Orders that are newer than those taken before, and of the incarnation that has taken them.
  Changes Take(const ShardOrders& orders);

  // A new incarnation holds nothing.
  void Clear() { jobs_.clear(); }

  // What is ordered of jobs that run, by job uid, without descriptions.
  const std::map<uint64_t, ShardJob>& jobs() const { return jobs_; }

 private:
  std::map<uint64_t, ShardJob> jobs_;
};

}  // namespace starling

#endif  // STARLING_COMMON_CONTROL_SHARD_ORDERS_H_
