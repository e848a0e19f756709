// Metrics that every process exports about itself.
#ifndef STARLING_COMMON_ADMIN_PROCESS_METRICS_H_
#define STARLING_COMMON_ADMIN_PROCESS_METRICS_H_

#include "common/admin/metrics_text.h"

namespace starling::admin {

// CPU time, memory, file descriptors and threads, from the kernel. Reads a few files in /proc/self.
void AddProcessMetrics(MetricsText& metrics);

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_PROCESS_METRICS_H_
