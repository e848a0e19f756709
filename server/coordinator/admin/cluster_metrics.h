// The coordinator's metrics (docs/metrics.md).
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_METRICS_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_METRICS_H_

#include "common/admin/metrics_text.h"
#include "server/coordinator/core/coordinator.h"

namespace starling::coordinator {

// Adds metrics of workers and shards, and of the jobs in the view: the live ones and the few that
// ended last.
void AddClusterMetrics(const ClusterView& view, admin::MetricsText& metrics);

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_METRICS_H_
