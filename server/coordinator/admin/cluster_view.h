// The cluster at one moment, as clients see it.
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_VIEW_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_VIEW_H_

#include <cstdint>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace starling {

struct ClusterView {
  absl::Time time;
  uint64_t generation = 0;  // of the coordinator
  ListJobsReply jobs;  // brief
  ListWorkersReply workers;
  ListShardsReply shards;
};

}  // namespace starling

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_VIEW_H_
