#include "worker/host/worker_metrics.h"

#include "absl/strings/str_cat.h"

namespace starling {

using admin::MetricsText;

void WorkerMetrics::BeginJob(const std::string& name) {
  MutexLock lock(&mutex_);
  job_ = std::make_unique<Job>();
  job_->name = name;
  report_.Clear();
}

void WorkerMetrics::EndJob() {
  MutexLock lock(&mutex_);
  job_.reset();
  report_.Clear();
}

void WorkerMetrics::Unit(const ExecutorTimes& times, uint64_t samples) {
  MutexLock lock(&mutex_);
  if (job_ == nullptr) return;
  const ExecutorTimes& before = job_->before;
  ++job_->units;
  job_->samples += samples;
  job_->unit.Observe(times.total - before.total);
  job_->data.Observe(times.data - before.data);
  job_->forward.Observe(times.forward - before.forward);
  job_->backward.Observe(times.backward - before.backward);
  job_->pull.Observe(times.values - before.values);
  job_->wait.Observe(times.held - before.held);
  job_->push.Observe(times.push - before.push);
  job_->before = times;
}

void WorkerMetrics::Publish(const WorkerReport& report) {
  MutexLock lock(&mutex_);
  report_.Clear();
  report_.set_hidden_share(report.hidden_share());
  *report_.mutable_times() = report.times();
  *report_.mutable_memory() = report.memory();
  *report_.mutable_links() = report.links();
}

void WorkerMetrics::AddJob(const Job& job, const WorkerReport& report, MetricsText& metrics) {
  const MetricsText::Labels labels = {{"job_name", job.name}};
  metrics.Counter("starling_worker_steps_total", "Units of training that this worker computed.",
                  labels, static_cast<double>(job.units));
  metrics.Counter("starling_worker_samples_total", "Samples in them.", labels,
                  static_cast<double>(job.samples));
  metrics.Histogram("starling_worker_unit_seconds",
                    "A unit of training, from the first lane's start to the last lane's end.",
                    labels, job.unit.counts());
  const auto phase = [&](absl::string_view name, const admin::SecondsHistogram& histogram) {
    metrics.Histogram("starling_worker_step_seconds",
                      "What the lanes did in a unit of training, as a mean over lanes.",
                      {{"job_name", job.name}, {"phase", name}}, histogram.counts());
  };
  phase("data", job.data);
  phase("forward", job.forward);
  phase("backward", job.backward);
  phase("pull", job.pull);
  phase("wait", job.wait);
  phase("push", job.push);
  metrics.Counter("starling_worker_idle_seconds_total", "Time without a unit to compute.", labels,
                  report.times().idle());
  metrics.Gauge("starling_worker_overlap_ratio",
                "Share of the recent communication that was hidden behind computing.", labels,
                report.hidden_share());
  metrics.Gauge("starling_worker_memory_planned_bytes",
                "Planned memory of the job's parameters, gradients and activations.", labels,
                static_cast<double>(report.memory().planned_bytes()));
  metrics.Gauge("starling_worker_memory_peak_bytes",
                "Greatest resident memory of the process since it took up the job; 0: unknown.",
                labels, static_cast<double>(report.memory().peak_bytes()));
  metrics.Gauge(
      "starling_worker_memory_device_peak_bytes",
      "Greatest amount of the GPU's memory that was taken since the worker took up the job; "
      "0: it computes on the CPU.",
      labels, static_cast<double>(report.memory().device_peak_bytes()));
}

void WorkerMetrics::AddLinks(const WorkerReport& report, MetricsText& metrics) {
  for (const LinkStatus& link : report.links()) {
    const std::string shard = absl::StrCat(link.shard());
    const MetricsText::Labels labels = {{"shard", shard}};
    metrics.Gauge("starling_worker_link_up", "1 while there is a stream to the shard.", labels,
                  link.connected() ? 1 : 0);
    metrics.Counter("starling_worker_link_sent_bytes_total", "Payloads sent to the shard.", labels,
                    static_cast<double>(link.sent_bytes()));
    metrics.Counter("starling_worker_link_received_bytes_total",
                    "Payloads that came from the shard.", labels,
                    static_cast<double>(link.received_bytes()));
    metrics.Counter("starling_worker_link_shared_bytes_total",
                    "Payloads in both directions that went through shared memory.", labels,
                    static_cast<double>(link.shared_bytes()));
    metrics.Counter("starling_worker_link_sending_seconds_total",
                    "Time in which a payload was being written, or waited for that.", labels,
                    link.sending_seconds());
    metrics.Gauge("starling_worker_link_round_trip_seconds",
                  "Lowest recent time from a request to its answer; 0: unknown.", labels,
                  link.round_trip_seconds());
  }
}

void WorkerMetrics::AddMetrics(MetricsText& metrics) const {
  MutexLock lock(&mutex_);
  if (job_ == nullptr) return;
  AddJob(*job_, report_, metrics);
  AddLinks(report_, metrics);
}

}  // namespace starling
