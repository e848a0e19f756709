#include "server/shard/service/shard_figures.h"

namespace starling {
namespace {

template <typename Integer>
double Number(const std::atomic<Integer>& value) {
  return static_cast<double>(value.load(std::memory_order_relaxed));
}

void AddJob(const std::string& job, const ShardJobFigures& figures, admin::MetricsText& metrics) {
  const admin::MetricsText::Labels labels = {{"job_name", job}};
  metrics.Histogram("starling_ps_push_seconds",
                    "From a push's arrival until its bytes are verified.", labels,
                    figures.push.counts());
  metrics.Histogram("starling_ps_pull_seconds",
                    "For how long a training pull was held back until its value was sent.", labels,
                    figures.pull.counts());
  metrics.Histogram("starling_ps_apply_seconds", "Computing one update of one slice.", labels,
                    figures.apply.counts());
  metrics.Counter("starling_ps_queue_seconds_total",
                  "From pushes' arrivals until their partitions' threads took them up, summed.",
                  labels, 1e-6 * Number(figures.queue_us));
  metrics.Counter("starling_ps_received_bytes_total", "Payloads of pushes.", labels,
                  Number(figures.received_bytes));
  metrics.Counter("starling_ps_sent_bytes_total", "Payloads of values.", labels,
                  Number(figures.sent_bytes));
  metrics.Gauge("starling_ps_parameter_bytes", "Parameters that this shard holds.", labels,
                Number(figures.parameter_bytes));
  metrics.Gauge("starling_ps_partitions", "Partitions that this shard holds.", labels,
                Number(figures.partitions));
}

}  // namespace

void ShardFigures::Show(const std::string& job,
                        const std::shared_ptr<const ShardJobFigures>& figures) {
  MutexLock lock(&mutex_);
  jobs_[job] = figures;
}

void ShardFigures::AddMetrics(admin::MetricsText& metrics) const {
  MutexLock lock(&mutex_);
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const std::shared_ptr<const ShardJobFigures> figures = it->second.lock();
    if (figures == nullptr) {
      it = jobs_.erase(it);
    } else {
      AddJob(it->first, *figures, metrics);
      ++it;
    }
  }
}

}  // namespace starling
