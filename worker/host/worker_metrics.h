// What a worker tells scrapers (docs/metrics.md).
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

// Thread-safe: the session publishes, the admin port reads.
class WorkerMetrics {
 public:
  // From here on metrics are of this job, until EndJob; then there are none.
  void BeginJob(const std::string& name);
  void EndJob();

  // A training unit was computed; `times` is the executor's, since it was made.
  void Unit(const ExecutorTimes& times, uint64_t samples);

  // What the coordinator is told, as it is told.
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
  WorkerReport report_ ABSL_GUARDED_BY(mutex_);  // times, memory, links and overlap of the last one
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_WORKER_METRICS_H_
