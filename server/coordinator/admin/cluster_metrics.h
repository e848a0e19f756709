// What a coordinator tells scrapers (docs/metrics.md).
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_METRICS_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_METRICS_H_

#include "common/admin/metrics_text.h"
#include "server/coordinator/admin/cluster_view.h"

namespace starling {

// Of jobs, workers and shards; a job that was deleted has no series.
void AddClusterMetrics(const ClusterView& view, admin::MetricsText& metrics);

}  // namespace starling

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_CLUSTER_METRICS_H_
