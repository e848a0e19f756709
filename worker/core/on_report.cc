// Reports contain everything that this worker holds. What the coordinator has not accepted is
// repeated.
#include <algorithm>

#include "worker/core/core.h"

namespace starling::session {

void Core::MaybeReport() {
  // A draining worker has no time for long waits.
  const absl::Time again = draining_
                               ? std::min(report_retry_.at, reported_at_ + options_.retry_least)
                               : report_retry_.at;
  if (now_ < again) return;
  const bool first = reports_under_way_ == 0;
  const bool second =
      reports_under_way_ == 1 && news_ && now_ >= reported_at_ + options_.report_spacing;
  if (!first && !second) return;
  news_ = false;
  ++reports_under_way_;
  reported_at_ = now_;
  Do(action::Report{MakeReport()});
}

WorkerReport Core::MakeReport() {
  WorkerReport report;
  report.set_worker(worker_.value);
  report.set_incarnation(incarnation_.value);
  report.set_sequence(++sequence_);
  report.set_generation(generation_.value);
  report.set_cluster(cluster_);
  report.set_orders_seen(orders_version_);
  report.set_draining(draining_);
  for (Finished& f : finished_) {
    if (static_cast<size_t>(report.finished_size()) == options_.metrics_per_report) break;
    if (f.sequence == 0) f.sequence = sequence_;
    *report.add_finished() = f.metrics;
  }
  if (draining_ && !job_.has_value() &&
      static_cast<size_t>(report.finished_size()) == finished_.size()) {
    report.set_drained(true);  // this report has everything that is left
    if (drained_sequence_ == 0) drained_sequence_ = sequence_;
  }
  for (const auto& [request, inspection] : inspections_) {
    if (inspection.has_value()) *report.add_inspections() = *inspection;
  }
  if (fault_.has_value()) *report.mutable_fault() = *fault_;
  if (!job_.has_value()) return report;
  const JobState& job = *job_;
  report.mutable_run()->set_job_uid(job.run.job.value);
  report.mutable_run()->set_era(job.run.era);
  report.set_prepared(job.prepared);
  report.set_clock(job.clock);
  AddRepeats(report);
  for (const auto* queue : {&job.evaluation, &job.training}) {
    for (const Lease& lease : *queue) report.add_leases_held(lease.id());
  }
  for (const auto& [id, unit] : job.units) {
    if (unit.lease.id() == 0) continue;
    report.add_leases_held(unit.lease.id());
    report.add_leases_begun(unit.lease.id());
  }
  // A lease is reported done together with its sums, so not while some of them wait for a later
  // report.
  const bool all_told = static_cast<size_t>(report.finished_size()) == finished_.size();
  for (const auto& [id, lease] : job.done) {
    if (all_told) {
      report.add_leases_done(id);
    } else {
      report.add_leases_held(id);
      report.add_leases_begun(id);
    }
  }
  return report;
}

}  // namespace starling::session
