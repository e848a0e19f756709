// A worker's current orders, assembled from the changes that the coordinator sends
// (docs/protocol.md, section 5). Pure: no I/O, no clock.
#ifndef STARLING_COMMON_CONTROL_WORKER_ORDERS_H_
#define STARLING_COMMON_CONTROL_WORKER_ORDERS_H_

#include "proto/coordinator.pb.h"

namespace starling {

// Gives `orders` what they leave out as unchanged: the description, views and roster of `before`,
// the whole orders that were taken before them. A description of another run is not taken.
void CompleteOrders(WorkerOrders before, WorkerOrders& orders);

}  // namespace starling

#endif  // STARLING_COMMON_CONTROL_WORKER_ORDERS_H_
