// A worker's metrics (docs/metrics.md).
#ifndef STARLING_WORKER_HOST_WORKER_METRICS_H_
#define STARLING_WORKER_HOST_WORKER_METRICS_H_

#include <memory>
#include <optional>
#include <string>

#include "common/admin/histogram.h"
#include "common/admin/metrics_text.h"
#include "common/sync/mutex.h"
#include "proto/coordinator.pb.h"
#include "worker/executor/executor_times.h"

namespace starling {

// Thread-safe: the session writes, the admin port reads.
class WorkerMetrics {
 public:
  // Metrics belong to this job until EndJob; after that there are none.
  void BeginJob(const std::string& name);
  void EndJob();

  // A training unit was computed. `times`: the executor's, since its construction.
  void Unit(const ExecutorTimes& times, uint64_t samples);

  // Takes figures from a report to the coordinator.
  void Publish(const WorkerReport& report);

  void AddMetrics(admin::MetricsText& metrics) const;

 private:
  struct Job {
    std::string name;
    uint64_t units = 0;
    uint64_t samples = 0;
    ExecutorTimes before;  // at the last unit's end
    admin::SecondsHistogram unit, data, forward, backward, pull, wait, push;
  };
  static void AddJob(const Job& job, const WorkerReport& report, admin::MetricsText& metrics);
  static void AddLinks(const WorkerReport& report, admin::MetricsText& metrics);

  mutable Mutex mutex_;
  std::unique_ptr<Job> job_ ABSL_GUARDED_BY(mutex_);
  WorkerReport report_ ABSL_GUARDED_BY(mutex_);  // the last one: times, memory, links, overlap
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_WORKER_METRICS_H_
