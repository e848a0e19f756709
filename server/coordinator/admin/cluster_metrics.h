// What a coordinator tells scrapers (docs/metrics.md).
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_METRICS_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_METRICS_H_

#include "common/admin/metrics_text.h"
#include "server/coordinator/core/coordinator.h"

namespace starling {

// Of workers and shards, and of the jobs of the view: those that live, and the few that ended last.
void AddClusterMetrics(const ClusterView& view, admin::MetricsText& metrics);

}  // namespace starling

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_METRICS_H_
