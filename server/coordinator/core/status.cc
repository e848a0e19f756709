// What users see of jobs, workers and shards.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"
#include "common/data_plan/job_steps.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr size_t kNamesShown = 8;

// "a, b and 3 more"
std::string Listed(std::vector<std::string> names) {
  const size_t more = names.size() > kNamesShown ? names.size() - kNamesShown : 0;
  names.resize(names.size() - more);
  return absl::StrCat(absl::StrJoin(names, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

}  // namespace

std::string Core::PolicyText(const Policy& policy) {
  switch (policy.kind()) {
    case Policy::BSP: return "bsp";
    case Policy::SSP: return absl::StrCat("ssp(", policy.staleness(), ")");
    default: return "async";
  }
}

// Steps that count on all partitions; for an ended job, as of its end.
uint64_t Core::StepsDone(const Job& job) const {
  if (!job.over() || !job.state.has_steps_done()) return StepsReported(job);
  if (job.state.has_figures()) return job.state.steps_done();
  // Shards tell more until each has sent its last report.
  return std::max({job.state.steps_done(), StepsReported(job), SealedSteps(job).value_or(0)});
}

uint64_t Core::StepsReported(const Job& job) const {
  if (job.state.stopping()) return job.state.training_end();
  const uint32_t epoch = job.state.epoch();
  const uint64_t open =
      job.state.state() == PENDING ? 0 : job.partitions.CountCovered(epoch, job.steps_in(epoch));
  // Before the first reports, those that were done in the run that the job goes on from.
  return std::min(std::max(epoch * job.epoch_steps() + open, job.first_step()), job.steps());
}

void Core::NoteTested(Job& job, uint32_t epoch) {
  job.tested.insert(std::upper_bound(job.tested.begin(), job.tested.end(), epoch), epoch);
}

// A job may have a million epochs, so frequent callers get few of them, and the others are not
// visited.
void Core::AddEpochs(const Job& job, Epochs epochs, JobStatus& status) {
  const auto add = [&](uint32_t epoch) { *status.add_epochs_done() = job.results.at(epoch); };
  switch (epochs) {
    case Epochs::kAll:
      for (const auto& [epoch, result] : job.results) *status.add_epochs_done() = result;
      return;
    case Epochs::kNewest: {
      if (job.results.empty()) return;
      const uint32_t newest = job.results.rbegin()->first;
      if (!job.tested.empty() && job.tested.back() != newest) add(job.tested.back());
      return add(newest);
    }
    case Epochs::kTested: {
      const size_t count = job.tested.size();
      const size_t stride = (count + limits::kCurvePointsMax - 1) / limits::kCurvePointsMax;
      // The newest is always listed.
      for (size_t i = count == 0 ? 0 : (count - 1) % stride; i < count; i += stride)
        add(job.tested[i]);
      return;
    }
  }
}

std::string Core::ReasonOf(const Job& job) const {
  if (job.state.state() == PENDING) {
    const std::string waits = RollsBack(job) ? WhatRollbackWaitsFor(job) : WaitsFor(job);
    return absl::StrCat(job.state.reason(), job.state.reason().empty() ? "" : "; ", waits);
  }
  if (job.over() && !job.unreadable.empty() && job.state.reason() != job.unreadable)
    return absl::StrCat(job.state.reason(), job.state.reason().empty() ? "" : "; ", job.unreadable);
  if (!job.running()) return job.state.reason();
  const std::vector<const Worker*> aside = SetAsideFor(job);
  if (aside.empty()) return job.state.reason();
  std::vector<std::string> names;
  bool no_memory = true;
  for (const Worker* worker : aside) {
    names.push_back(worker->name());
    no_memory &= worker->aside.at(job.uid()).kind == Fault::NO_ROOM;
  }
  const bool one = aside.size() == 1;
  return absl::StrCat(
      job.state.roster().members_size() > 0 ? "goes on without " : "waits for a worker other than ",
      Listed(std::move(names)), ", which ",
      no_memory ? (one ? "has no memory for it: " : "have no memory for it: ")
                : (one ? "cannot serve it: " : "cannot serve it; the last of them: "),
      aside.back()->aside.at(job.uid()).why);
}

JobStatus Core::StatusOf(const Job& job, Epochs epochs) const {
  JobStatus status;
  status.set_uid(job.uid());
  status.set_name(job.name());
  status.set_state(job.state.state());
  status.set_reason(ReasonOf(job));
  status.set_era(job.stored.description().run().era());
  status.set_epochs(job.epochs());
  status.set_epoch(std::min(job.state.epoch(), status.epochs()));
  status.set_step(StepsDone(job));
  status.set_steps(job.steps());
  if (job.loss) {
    status.set_train_loss(*job.loss);
  } else if (!job.results.empty() && job.results.rbegin()->second.has_train_loss()) {
    status.set_train_loss(job.results.rbegin()->second.train_loss());
  }
  AddEpochs(job, epochs, status);
  status.set_submitted(TimeText(absl::FromUnixMicros(job.stored.submitted_us())));
  status.set_running_seconds(RunningSeconds(job));
  status.set_parameters(job.stored.parameters());
  *status.mutable_warnings() = job.stored.warnings();
  AddPolicies(job, status);
  status.set_roster(job.state.roster().number());
  status.set_generation(generation());
  if (job.state.has_output()) *status.mutable_output() = job.state.output();
  AddWorkerMetrics(job, status);
  AddShardMetrics(job, status);
  AddCopies(job, status);
  AddCheckpoint(job, status);
  AddRestarts(job, status);
  if (job.over()) AddAverages(job, status);
  status.set_kept_until(KeptUntil(job));
  return status;
}

// Averages of an ended job over its running time.
void Core::AddAverages(const Job& job, JobStatus& status) const {
  const uint64_t epoch_steps = std::max<uint64_t>(1, job.epoch_steps());
  const double samples =
      static_cast<double>(status.step() / epoch_steps * job.samples() +
                          status.step() % epoch_steps * job.spec().batch().global());
  if (status.running_seconds() > 0)
    status.set_samples_per_second(samples / status.running_seconds());
  double hidden = 0, seconds = 0;
  for (const CurvePoint& point : job.curve.points()) {
    hidden += point.hidden_share() * (point.seconds() - seconds);
    seconds = point.seconds();
  }
  if (seconds > 0) status.set_hidden_share(hidden / seconds);
}

// The status as shown in lists.
JobStatus Core::ListedStatusOf(const Job& job) const {
  JobStatus status = StatusOf(job, Epochs::kNewest);
  status.clear_policies();
  status.clear_lag_histogram();
  return status;
}

JobReply Core::DescribeJob(const Job& job) const {
  JobReply reply;
  *reply.mutable_status() = StatusOf(job);
  *reply.mutable_spec() = job.spec();
  *reply.mutable_views() = job.state.views();
  const std::vector<PartitionValues> values = ValuesOf(job);
  reply.mutable_values()->Assign(values.begin(), values.end());
  return reply;
}

void Core::AddPolicies(const Job& job, JobStatus& status) {
  status.set_policy(PolicyText(job.policy().policy()));
  for (const StoredPolicy& stored : job.state.policies()) *status.add_policies() = stored.record();
  status.set_not_reproducible_because(WhyNotReproducible(job, job.steps()));
  status.set_reproducible(status.not_reproducible_because().empty());
}

std::string Core::WhyNotReproducible(const Job& job, uint64_t end) {
  // The run that it goes on from was not.
  if (!job.stored.not_reproducible_because().empty()) return job.stored.not_reproducible_because();
  const auto& policies = job.state.policies();
  for (int i = 0; i < policies.size(); ++i) {
    const PolicyRecord& record = policies[i].record();
    const bool ends = i + 1 < policies.size() && policies[i + 1].record().in_force();
    const uint64_t last = ends ? std::min(end, policies[i + 1].record().step()) : end;
    const bool any_step = record.in_force() && record.step() < last;
    if (record.policy().kind() == Policy::BSP || !any_step) continue;
    return absl::StrCat(PolicyText(record.policy()),
                        " applies contributions in the order of their arrival");
  }
  return "";
}

void Core::AddWorkerMetrics(const Job& job, JobStatus& status) const {
  double hidden = 0;
  for (const Member& member : job.state.roster().members()) {
    const Worker& worker = workers_.at(member.worker());
    status.set_samples_per_second(status.samples_per_second() + NewSamplesPerSecond(worker));
    hidden += worker.report.hidden_share();
  }
  const int members = job.state.roster().members_size();
  status.set_workers(static_cast<uint32_t>(members));
  if (members > 0) status.set_hidden_share(hidden / members);
  AddLateWorkers(job, status);
}

void Core::AddShardMetrics(const Job& job, JobStatus& status) const {
  const Policy& policy = job.policy().policy();
  status.set_staleness_bound(policy.kind() == Policy::ASYNC ? std::numeric_limits<uint64_t>::max()
                             : policy.kind() == Policy::SSP ? policy.staleness()
                                                            : 0);
  if (const std::optional<uint64_t> sealed = SealedSteps(job)) status.set_sealed_steps(*sealed);
  for (const auto& partition : job.partitions) {
    if (!partition || !job.running()) continue;
    const auto lag = static_cast<uint64_t>(
        std::max<int64_t>(0, partition->clock_max() - partition->clock_min()));
    // A replica that has closed more units than the bound allows waits at the gate, so it never
    // computes with more staleness than the bound.
    const uint64_t now = std::min<uint64_t>(lag, status.staleness_bound());
    status.set_staleness(std::max(status.staleness(), now));
  }
  status.MergeFrom(job.state.figures());
  AddReported(job, status);
}

// Adds what the job's shards report, combined.
void Core::AddReported(const Job& job, JobStatus& status) {
  bool first = true;
  for (const auto& partition : job.partitions) {
    if (!partition) continue;
    status.set_staleness_max(std::max(status.staleness_max(), partition->lag_max()));
    while (status.lag_histogram_size() < partition->lag_histogram_size())
      status.add_lag_histogram(0);
    for (int i = 0; i < partition->lag_histogram_size(); ++i) {
      status.set_lag_histogram(i, status.lag_histogram(i) + partition->lag_histogram(i));
    }
    if (partition->loss_scale() > 0) {
      status.set_loss_scale(partition->loss_scale());
      status.set_skipped_steps(partition->skipped_steps());
    }
    if (partition->cut_epochs() == 0) continue;
    status.set_coverage_min(first ? partition->applied_min()
                                  : std::min(status.coverage_min(), partition->applied_min()));
    status.set_coverage_max(std::max(status.coverage_max(), partition->applied_max()));
    status.set_coverage_expected(job.steps_in(partition->cut_epochs() - 1));
    first = false;
  }
}

template <typename Status>
Status Core::DaemonStatus(const Daemon& daemon) const {
  Status status;
  status.set_id(daemon.id());
  status.set_name(daemon.name());
  status.set_address(daemon.stored.registration().address());
  status.set_incarnation(daemon.stored.incarnation());
  status.set_version(daemon.stored.registration().version().version());
  status.set_seconds_since_report(absl::ToDoubleSeconds(now_ - daemon.last_heard));
  return status;
}

WorkerStatus Core::StatusOf(const Worker& worker) const {
  WorkerStatus status = DaemonStatus<WorkerStatus>(worker);
  status.set_clock(worker.report.clock());
  const std::string& trouble =
      worker.quarantined() ? worker.stored.quarantine() : worker.report.trouble();
  status.set_trouble(std::string(CutUtf8(trouble, limits::kFaultBytesMax)));
  if (worker.report.has_memory()) *status.mutable_memory() = worker.report.memory();
  const uint64_t uid = worker.member_of != 0 ? worker.member_of : worker.job;
  auto job = jobs_.find(uid);
  if (job != jobs_.end()) status.set_job(job->second.name());
  status.set_state(StateOf(worker));
  if (const Worker* late = RepeatedBy(worker); late != nullptr) {
    status.set_repeats(late->name());
    status.set_late_seconds(worker.report.repeats().late_seconds());
  }
  return status;
}

std::string Core::StateOf(const Worker& worker) const {
  const auto job = jobs_.find(worker.member_of != 0 ? worker.member_of : worker.job);
  bool evaluating = false;
  if (job != jobs_.end()) {
    for (const auto& [epoch, evaluation] : job->second.evaluations) {
      evaluating |= evaluation.leases && evaluation.leases->held_count(worker.id()) > 0;
    }
  }
  return worker.fenced()            ? worker.left() ? "left" : "lost"
         : !worker.heard            ? "unknown"
         : worker.quarantined()     ? "quarantined"
         : worker.report.draining() ? "draining"
         : evaluating               ? "evaluating"
         : worker.member_of != 0    ? "training"
         : worker.job != 0          ? "preparing"
                                    : "idle";
}

std::string Core::StateOf(const Shard& shard) {
  return shard.fenced()          ? shard.left() ? "left" : "lost"
         : !shard.absent.empty() ? "silent"
         : !shard.heard          ? "unknown"
         : shard.draining        ? "draining"
                                 : "ready";
}

std::vector<std::string> Core::Warnings() const {
  std::vector<std::string> open;
  if (options_.insecure) open.push_back("the coordinator");
  const auto add = [&](const Daemon& daemon) {
    if (daemon.live() && daemon.stored.registration().insecure()) open.push_back(daemon.name());
  };
  for (const auto& [id, shard] : shards_) add(shard);
  for (const auto& [id, worker] : workers_) add(worker);
  std::vector<std::string> warnings;
  if (!open.empty()) {
    warnings.push_back(
        absl::StrCat(Listed(std::move(open)),
                     " started with --insecure: anyone who reaches the port can read and ",
                     "change everything; use --tls-cert, --tls-key and --tls-ca"));
  }
  for (const auto& [id, worker] : workers_) {
    if (worker.live() && worker.quarantined()) warnings.push_back(worker.stored.quarantine());
  }
  if (std::string text = RetentionText(); !text.empty()) warnings.push_back(std::move(text));
  return warnings;
}

ShardStatus Core::StatusOf(const Shard& shard) const {
  ShardStatus status = DaemonStatus<ShardStatus>(shard);
  status.set_state(StateOf(shard));
  status.set_partitions(static_cast<uint32_t>(shard.partitions));
  status.set_value_bytes(shard.value_bytes);
  std::string trouble = shard.trouble;
  const bool looked = shard.live() && !StillLooks(shard);
  if (!options_.checkpoint_root.empty() && checkpoints_marked_.ok() && looked) {
    const std::string blind = WhyBlind(shard);
    absl::StrAppend(&trouble, trouble.empty() || blind.empty() ? "" : "; ", blind);
  }
  status.set_trouble(trouble);
  if (shard.draining && !shard.fenced()) status.set_drain(shard.drain.text());
  return status;
}

}  // namespace starling::coordinator
