#include "server/shard/host/shard_metrics.h"

namespace starling {
namespace {

template <typename Integer>
double Number(const std::atomic<Integer>& value) {
  return static_cast<double>(value.load(std::memory_order_relaxed));
}

void AddJob(const std::string& job, const ShardJobMetrics& metrics, admin::MetricsText& text) {
  const admin::MetricsText::Labels labels = {{"job_name", job}};
  text.Histogram("starling_ps_push_seconds", "From a push's arrival until its bytes are verified.",
                 labels, metrics.push.counts());
  text.Histogram("starling_ps_pull_seconds",
                 "For how long a training pull was held back until its value was sent.", labels,
                 metrics.pull.counts());
  text.Histogram("starling_ps_apply_seconds", "Computing one update of one slice.", labels,
                 metrics.apply.counts());
  text.Counter("starling_ps_queue_seconds_total",
               "From pushes' arrivals until their partitions' threads took them up, summed.",
               labels, 1e-6 * Number(metrics.queue_us));
  text.Counter("starling_ps_received_bytes_total", "Payloads of pushes.", labels,
               Number(metrics.received_bytes));
  text.Counter("starling_ps_sent_bytes_total", "Payloads of values.", labels,
               Number(metrics.sent_bytes));
  text.Gauge("starling_ps_parameter_bytes", "Parameters that this shard holds.", labels,
             Number(metrics.parameter_bytes));
  text.Gauge("starling_ps_partitions", "Partitions that this shard holds.", labels,
             Number(metrics.partitions));
}

}  // namespace

void ShardMetrics::Show(const std::string& job,
                        const std::shared_ptr<const ShardJobMetrics>& metrics) {
  MutexLock lock(&mutex_);
  std::erase_if(jobs_, [](const auto& known) { return known.second.expired(); });
  jobs_[job] = metrics;
}

void ShardMetrics::AddMetrics(admin::MetricsText& text) const {
  MutexLock lock(&mutex_);
  for (const auto& [job, known] : jobs_) {
    if (const auto metrics = known.lock()) AddJob(job, *metrics, text);
  }
}

}  // namespace starling
