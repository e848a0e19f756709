// Converts the coordinator's orders for the partition core.
#ifndef STARLING_SERVER_SHARD_CORE_ORDERS_H_
#define STARLING_SERVER_SHARD_CORE_ORDERS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/events.h"

namespace starling {

// kInvalidArgument: the orders cannot be followed; the message says why.
absl::StatusOr<OrdersReceived> ToPartitionOrders(const ShardJob& job,
                                                 const PartitionOrders& partition,
                                                 uint64_t generation);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_ORDERS_H_
