// The coordinator's orders in the words of the partition core.
#ifndef STARLING_SERVER_SHARD_CORE_ORDERS_H_
#define STARLING_SERVER_SHARD_CORE_ORDERS_H_

#include <cstdint>

#include "proto/coordinator.pb.h"
#include "server/shard/core/events.h"

namespace starling {

OrdersReceived ToPartitionOrders(const ShardJob& job, const PartitionOrders& partition,
                                 uint64_t generation);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_ORDERS_H_
