// A shard's metrics by job (docs/metrics.md).
#ifndef STARLING_SERVER_SHARD_HOST_SHARD_METRICS_H_
#define STARLING_SERVER_SHARD_HOST_SHARD_METRICS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/admin/histogram.h"
#include "common/admin/metrics_text.h"
#include "common/sync/mutex.h"

namespace starling {

// The metrics of one job. Partitions add to them on their owners' threads; any thread may read
// them.
struct ShardJobMetrics {
  admin::SecondsHistogram push;        // from a push's arrival until its bytes are verified
  admin::SecondsHistogram pull;        // how long a training pull was held
  admin::SecondsHistogram apply;       // one update of one slice
  std::atomic<uint64_t> queue_us = 0;  // from pushes' arrivals until their owners handle them
  std::atomic<uint64_t> received_bytes = 0;
  std::atomic<uint64_t> sent_bytes = 0;
  std::atomic<int64_t> parameter_bytes = 0;  // of the partitions that are hosted now
  std::atomic<int64_t> partitions = 0;
};

// Thread-safe.
class ShardMetrics {
 public:
  // Shows the job's series as long as another owner keeps `metrics` alive. If two jobs have the
  // same name (one was deleted and submitted again), the later one is shown.
  void Show(const std::string& job, const std::shared_ptr<const ShardJobMetrics>& metrics);

  void AddMetrics(admin::MetricsText& text) const;

 private:
  mutable Mutex mutex_;
  // Those of jobs that are gone stay until the next Show.
  std::map<std::string, std::weak_ptr<const ShardJobMetrics>> jobs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_METRICS_H_
