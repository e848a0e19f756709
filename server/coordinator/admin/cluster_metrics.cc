#include "server/coordinator/admin/cluster_metrics.h"

#include <limits>
#include <map>
#include <string>

namespace starling::coordinator {
namespace {

using admin::MetricsText;

constexpr const char* kWorkerStates[] = {"idle",       "preparing", "training",
                                         "evaluating", "draining",  "quarantined",
                                         "left",       "lost",      "unknown"};
constexpr const char* kShardStates[] = {"ready", "draining", "silent", "left", "lost", "unknown"};
constexpr JobState kJobStates[] = {PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED};

// States without members have a series, too, so that an alert can tell 0 from a missing series.
template <typename State>
uint64_t CountOf(const std::map<State, uint64_t>& counts, const State& state) {
  const auto it = counts.find(state);
  return it == counts.end() ? 0 : it->second;
}

void AddStates(const ClusterView& view, MetricsText& metrics) {
  const auto add = [&](absl::string_view name, absl::string_view help, const std::string& state,
                       uint64_t count) {
    metrics.Gauge(name, help, {{"state", state}}, static_cast<double>(count));
  };
  for (const JobState state : kJobStates) {
    add("starling_coordinator_jobs", "Jobs that are not deleted, by state.", JobState_Name(state),
        CountOf(view.job_counts, state));
  }
  for (const std::string state : kWorkerStates) {
    add("starling_coordinator_workers", "Workers that the coordinator knows, by state.", state,
        CountOf(view.worker_counts, state));
  }
  for (const std::string state : kShardStates) {
    add("starling_coordinator_shards", "Shards that the coordinator knows, by state.", state,
        CountOf(view.shard_counts, state));
  }
  metrics.Counter("starling_coordinator_workers_lost_total",
                  "Workers that fell silent without leaving, since the coordinator's start.", {},
                  static_cast<double>(view.workers_lost));
  metrics.Counter("starling_coordinator_shards_lost_total",
                  "Shards that were given up, since the coordinator's start.", {},
                  static_cast<double>(view.shards_lost));
  metrics.Counter("starling_coordinator_jobs_failed_total",
                  "Jobs that failed, since the coordinator's start.", {},
                  static_cast<double>(view.jobs_failed));
}

void AddStaleness(const JobStatus& job, const MetricsText::Labels& labels, MetricsText& metrics) {
  metrics.Gauge("starling_staleness_steps",
                "Clock of the fastest worker less that of the slowest, now.", labels,
                static_cast<double>(job.staleness()));
  metrics.Gauge("starling_staleness_greatest_steps",
                "Greatest lead that a pull was answered at since the job began.", labels,
                static_cast<double>(job.staleness_max()));
  if (job.staleness_bound() == std::numeric_limits<uint64_t>::max()) return;  // async: none
  metrics.Gauge("starling_staleness_bound_steps", "What the job's policy allows; async: no series.",
                labels, static_cast<double>(job.staleness_bound()));
}

void AddCopies(const JobStatus& job, const MetricsText::Labels& labels, MetricsText& metrics) {
  if (job.partitions() == 0) return;
  metrics.Gauge("starling_job_partitions", "Partitions of the job's parameters.", labels,
                job.partitions());
  metrics.Gauge("starling_job_partitions_replicated", "Partitions with two whole copies.", labels,
                job.partitions_whole());
  metrics.Gauge("starling_job_not_replicated_seconds",
                "For how long some partition has lacked its second copy; 0: none does, or the job "
                "is to have one copy.",
                labels, job.unreplicated_seconds());
  metrics.Gauge("starling_job_backup_behind_records",
                "Records of updates that a second copy has not said to have, at most.", labels,
                static_cast<double>(job.backup_behind()));
  metrics.Gauge("starling_job_backup_silent_seconds",
                "For how long a second copy has taken nothing, at most, though the first waits for "
                "it.",
                labels, job.backup_silent_seconds());
  metrics.Counter("starling_job_failovers_total", "Partitions that another shard has taken over.",
                  labels, static_cast<double>(job.failovers()));
}

void AddCheckpoints(const JobStatus& job, const MetricsText::Labels& labels, MetricsText& metrics) {
  if (!job.has_checkpoint()) return;
  const CheckpointStatus& checkpoint = job.checkpoint();
  absl::Time created;
  if (absl::ParseTime(absl::RFC3339_full, checkpoint.last().created(), &created, nullptr)) {
    metrics.Gauge("starling_checkpoint_last_success_timestamp_seconds",
                  "When the last checkpoint was cut; no series before it.", labels,
                  absl::ToDoubleSeconds(created - absl::UnixEpoch()));
    metrics.Gauge("starling_checkpoint_bytes", "Size of the last checkpoint.", labels,
                  static_cast<double>(checkpoint.last().bytes()));
    metrics.Gauge("starling_checkpoint_seconds",
                  "What the last checkpoint took, beside training; 0: taken before the "
                  "coordinator's start.",
                  labels, checkpoint.last_seconds());
  }
  metrics.Counter("starling_checkpoint_failures_total",
                  "Checkpoints that came to nothing, since the coordinator's start.", labels,
                  static_cast<double>(checkpoint.failures()));
  metrics.Gauge("starling_checkpoint_overdue_seconds",
                "For how long a checkpoint has been due; 0: none is.", labels,
                checkpoint.overdue_seconds());
  metrics.Gauge("starling_checkpoint_failing_seconds",
                "For how long each attempt at a checkpoint has failed; 0: the last one did not.",
                labels, checkpoint.failing_seconds());
}

void AddJob(const JobStatus& job, MetricsText& metrics) {
  const MetricsText::Labels labels = {{"job_name", job.name()}};
  metrics.Counter("starling_job_restarts_total",
                  "How often the job went back to a checkpoint, or began again.", labels,
                  job.restarts());
  const auto gauge = [&](absl::string_view name, absl::string_view help, double value) {
    metrics.Gauge(name, help, labels, value);
  };
  gauge("starling_job_running", "1 while the job is RUNNING, else 0.",
        job.state() == RUNNING ? 1 : 0);
  gauge("starling_job_step", "Global batches that are finished.", static_cast<double>(job.step()));
  gauge("starling_job_planned_steps", "Global batches of the whole job.",
        static_cast<double>(job.steps()));
  gauge("starling_job_epoch", "Epochs that are finished.", job.epoch());
  gauge("starling_job_workers", "Workers that are members of the job.", job.workers());
  gauge("starling_job_late_workers",
        "Members that were late, and whose part of each step a backup worker repeats.",
        job.late_workers_size());
  gauge("starling_job_parameters", "Parameters of the model.",
        static_cast<double>(job.parameters()));
  if (job.has_train_loss())
    gauge("starling_job_train_loss", "Training loss of late.", job.train_loss());
  const bool runs = job.state() == RUNNING;  // an ended job's status has averages
  gauge("starling_job_samples_per_second", "Samples that the members compute in a second.",
        runs ? job.samples_per_second() : 0);
  gauge("starling_job_overlap_ratio",
        "Share of the communication that computing hides, as a mean over members.",
        runs ? job.hidden_share() : 0);
  gauge("starling_job_running_seconds", "For how long the job has run, or ran.",
        job.running_seconds());
  AddStaleness(job, labels, metrics);
  AddCopies(job, labels, metrics);
  AddCheckpoints(job, labels, metrics);
  if (job.loss_scale() > 0) {
    gauge("starling_job_loss_scale", "What the loss is multiplied by; fp16 alone.",
          job.loss_scale());
    metrics.Counter(
        "starling_job_skipped_steps_total",
        "Global batches that changed nothing, since their gradient overflowed; fp16 alone.", labels,
        static_cast<double>(job.skipped_steps()));
  }
  for (auto epoch = job.epochs_done().rbegin(); epoch != job.epochs_done().rend(); ++epoch) {
    if (!epoch->evaluated()) continue;
    gauge("starling_job_test_loss", "Loss over the test data, as last evaluated.",
          epoch->test_loss());
    if (epoch->has_test_accuracy()) {
      gauge("starling_job_test_accuracy",
            "Share of the test data that is right, as last evaluated.", epoch->test_accuracy());
    }
    return;
  }
}

}  // namespace

void AddClusterMetrics(const ClusterView& view, MetricsText& metrics) {
  metrics.Gauge("starling_coordinator_generation",
                "How often a coordinator has started on this state.", {},
                static_cast<double>(view.generation));
  AddStates(view, metrics);
  for (const JobStatus& job : view.jobs.jobs()) AddJob(job, metrics);
}

}  // namespace starling::coordinator
