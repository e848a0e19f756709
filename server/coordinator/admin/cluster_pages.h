// The coordinator's pages on its admin port: metrics, the status page, and the data that it
// fetches.
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_PAGES_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_PAGES_H_

#include "common/admin/admin.h"
#include "server/coordinator/host/coordinator_host.h"

namespace starling::coordinator {

//   /             the status page: one file that fetches the others every two seconds
//   /status.json  jobs, workers and shards
//   /curves.json?job=NAME
// Marks the coordinator as ready. `host` and `admin` must outlive Admin::BeginShutdown.
void ShowCluster(CoordinatorHost* host, admin::Admin* admin);

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_PAGES_H_
