// Why is a job slow or stuck? The core keeps the evidence: recent counters, lost workers, how long
// links have been down. None of it is durable. server/coordinator/explain judges it.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"
#include "server/coordinator/explain/explain.h"

namespace starling::coordinator {
namespace {

constexpr size_t kDeparturesMax = 64;  // of a job
constexpr absl::Duration kDepartureTold = absl::Minutes(10);

}  // namespace

double Core::SecondsSince(absl::Time time) const {
  return std::max(0.0, absl::ToDoubleSeconds(now_ - time));
}

void Core::On(const event::Explain& event) {
  const Job* job = FindJob(event.request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(event.request.name()));
  const explain::Evidence evidence = GatherEvidence(*job);
  ExplainReply reply;
  *reply.mutable_status() = StatusOf(*job);
  for (Finding& finding : explain::Explain(evidence)) *reply.add_findings() = std::move(finding);
  if (job->running()) {
    for (PhaseShare& phase : explain::Phases(evidence)) *reply.add_phases() = std::move(phase);
  }
  Reply(event.call, std::move(reply));
}

// ---- What is kept ---------------------------------------------------------------------------

void Core::NoteCounters(Worker& worker) {
  const Run& run = worker.report.run();
  if (!SameRun(run, worker.counted) || run.job_uid() == 0) {
    worker.counted = run;
    worker.counters.Clear();
    worker.links_down.clear();
  }
  if (run.job_uid() == 0) return;
  explain::WorkerCounters counters;
  counters.times = worker.report.times();
  std::map<uint32_t, absl::Time> down;
  for (const LinkStatus& link : worker.report.links()) {
    if (!shards_.contains(link.shard()) || counters.links.size() >= shards_.size()) continue;
    counters.links.push_back(link);
    counters.links.back().clear_last_error();
    if (link.connected()) continue;
    const auto since = worker.links_down.find(link.shard());
    down[link.shard()] = since == worker.links_down.end() ? now_ : since->second;
  }
  worker.links_down = std::move(down);
  worker.counters.Take(std::move(counters), now_);
}

void Core::NoteCounters(Job& job, uint32_t partition) const {
  job.partition_counters.resize(job.partitions.size());
  job.partition_counters[partition].Take(job.partitions[partition]->times(), now_);
}

void Core::NoteDeparture(const Worker& worker, const std::string& why) {
  Job* job = FindRunning(worker.member_of);
  if (job == nullptr || worker.report.drained()) return;
  job->departed[worker.name()] = {worker.stored.registration().address(), why, worker.last_heard};
  if (job->departed.size() <= kDeparturesMax) return;
  job->departed.erase(std::min_element(
      job->departed.begin(), job->departed.end(),
      [](const auto& a, const auto& b) { return a.second.last_heard < b.second.last_heard; }));
}

void Core::NoteSteps(Job& job, uint64_t done) const {
  if (done == job.steps_seen && job.stepped != absl::Time()) return;
  job.steps_seen = done;
  job.stepped = now_;
}

void Core::NoteEvaluation(Job& job) const {
  std::optional<EvaluationSeen> seen;
  if (!job.evaluations.empty()) {
    const auto& [epoch, evaluation] = *job.evaluations.begin();
    seen = {.epoch = epoch};
    if (evaluation.leases) {
      seen->done = evaluation.leases->done_count();
      for (const Member& member : job.state.roster().members())
        seen->held[member.worker()] = evaluation.leases->held_count(member.worker());
    }
  }
  if (seen == job.evaluation_seen) return;
  job.evaluation_seen = std::move(seen);
  job.evaluation_moved = now_;
}

// ---- What is gathered -----------------------------------------------------------------------

explain::Evidence Core::GatherEvidence(const Job& job) const {
  explain::Evidence evidence;
  evidence.job = job.name();
  evidence.state = job.state.state();
  evidence.reason = ReasonOf(job);
  // As what follows "it"; the reason of one that goes back, or went, begins with what was lost.
  if (RollsBack(job)) {
    evidence.reason = absl::StrCat(
        BeginsAgain(job) ? "begins again: " : "goes back to a checkpoint: ", ReasonOf(job));
  } else if (job.state.state() == PENDING && Ran(job)) {
    evidence.reason = absl::StrCat(WaitsFor(job), "; it went back: ", job.state.reason());
  }
  evidence.pending_seconds = SecondsSince(job.pending_since);
  evidence.liveness_seconds = absl::ToDoubleSeconds(options_.liveness);
  evidence.workers_min = job.spec().workers_min();
  evidence.workers_max = MostWorkers(job);
  evidence.micro_batches = job.spec().batch().micro_batches();
  evidence.backup_workers = job.spec().workers_backup();
  if (!job.running()) return evidence;
  evidence.running_seconds = RunningSeconds(job);
  const absl::Time began = now_ - absl::Seconds(evidence.running_seconds);
  evidence.steps = StepsDone(job);
  // If the time was not recorded: since the job or the coordinator started.
  const auto since = [&](absl::Time time) {
    return SecondsSince(time == absl::Time() ? std::max(began, started_) : time);
  };
  evidence.stalled_seconds = since(job.stepped);
  evidence.staffed_seconds = since(job.staffed);
  evidence.evaluating = !job.evaluations.empty();
  if (job.evaluation_seen) evidence.evaluation_stalled_seconds = SecondsSince(job.evaluation_moved);
  evidence.policy = job.policy().policy();
  if (const PolicyRecord* next = job.next_policy(); next != nullptr) {
    evidence.policy_change_seconds = since(job.policy_asked);
    evidence.next_policy =
        absl::StrCat(PolicyText(next->policy()), next->checkpoint() ? ", for a checkpoint" : "");
  }
  AddMembers(job, evidence);
  AddShards(job, evidence);
  AddCopies(job, evidence);
  AddCheckpoint(job, evidence);
  if (job.state.restarts() > 0) evidence.went_back = job.state.last_restart();
  if (job.recovering) evidence.recovering_seconds = SecondsSince(started_);
  return evidence;
}

explain::WorkerEvidence Core::EvidenceOf(const Worker& worker) const {
  explain::WorkerEvidence evidence;
  evidence.name = worker.name();
  evidence.address = worker.stored.registration().address();
  evidence.silent_seconds = SecondsSince(SilentFrom(worker));
  evidence.window_seconds = absl::ToDoubleSeconds(worker.counters.Span(now_));
  const explain::WorkerCounters counters = worker.counters.Growth(now_);
  evidence.times = counters.times;
  evidence.trouble = std::string(CutUtf8(worker.report.trouble(), limits::kFaultBytesMax));
  for (const LinkStatus& link : worker.report.links()) {
    const auto shard = shards_.find(link.shard());
    if (shard == shards_.end()) continue;
    explain::LinkEvidence of;
    of.shard = shard->second.name();
    const auto grown =
        std::find_if(counters.links.begin(), counters.links.end(),
                     [&](const auto& other) { return other.shard() == link.shard(); });
    if (grown != counters.links.end()) of.link = *grown;
    of.link.set_address(link.address());
    of.link.set_connected(link.connected());
    of.link.set_last_error(std::string(CutUtf8(link.last_error(), limits::kFaultBytesMax)));
    of.link.set_round_trip_seconds(link.round_trip_seconds());
    const auto down = worker.links_down.find(link.shard());
    if (down != worker.links_down.end()) of.down_seconds = SecondsSince(down->second);
    evidence.links.push_back(std::move(of));
  }
  return evidence;
}

void Core::AddMembers(const Job& job, explain::Evidence& evidence) const {
  for (const auto& [id, worker] : workers_) {
    const bool member = worker.member_of == job.uid();
    if (!member && (worker.job != job.uid() || worker.fenced())) continue;
    explain::WorkerEvidence of = EvidenceOf(worker);
    of.member = member;
    if (!member) of.preparing_seconds = SecondsSince(worker.release_since);
    for (const auto& [other, backup] : workers_) {
      if (RepeatedBy(backup) == &worker) of.repeated_by = backup.name();
    }
    evidence.workers.push_back(std::move(of));
    if (job.recovering && member && !worker.heard) {
      evidence.unheard.push_back(absl::StrCat("worker ", worker.name(), " (",
                                              worker.stored.registration().address(), ")"));
    }
  }
  std::set<std::string> back;
  for (const Worker* worker : SetAsideFor(job)) {
    back.insert(worker->name());
    const Worker::Aside& aside = worker->aside.at(job.uid());
    using Cause = explain::SetAsideEvidence::Cause;
    const Cause cause = aside.quarantined || worker->quarantined() ? Cause::kQuarantined
                        : aside.kind == Fault::NON_FINITE          ? Cause::kSuspected
                        : aside.kind == Fault::NO_ROOM             ? Cause::kNoMemory
                                                                   : Cause::kUnfit;
    evidence.set_aside.push_back(
        {worker->name(), worker->stored.registration().address(), aside.why, cause});
  }
  for (const auto& [id, worker] : workers_) {
    if (!worker.live() || !worker.quarantined() || back.contains(worker.name())) continue;
    if (!HasDevice(worker, job)) continue;
    evidence.set_aside.push_back({worker.name(), worker.stored.registration().address(),
                                  worker.stored.quarantine(),
                                  explain::SetAsideEvidence::Cause::kQuarantined});
  }
  const bool too_few =
      static_cast<uint32_t>(job.state.roster().members_size()) < job.spec().workers_min();
  for (const auto& [name, departure] : job.departed) {
    if (back.contains(name)) continue;  // `set_aside` says why it does not serve the job
    if (!too_few && now_ - departure.last_heard > kDepartureTold) continue;
    evidence.lost.push_back(
        {name, departure.address, departure.why, SecondsSince(departure.last_heard)});
  }
  // The most recently heard one comes first.
  std::stable_sort(evidence.lost.begin(), evidence.lost.end(), [](const auto& a, const auto& b) {
    return a.silent_seconds < b.silent_seconds;
  });
}

void Core::AddShards(const Job& job, explain::Evidence& evidence) const {
  std::set<uint32_t> seen;
  for (const View& view : job.state.views()) {
    const auto it = shards_.find(view.primary());
    if (it == shards_.end()) continue;
    const Shard& shard = it->second;
    const RegisterRequest& registration = shard.stored.registration();
    if (seen.insert(view.primary()).second) {
      const double silent = shard.heard ? SecondsSince(shard.last_heard) : 0;
      evidence.shards.push_back(
          {shard.name(), registration.address(), silent, registration.cores(), shard.trouble});
    }
    const uint32_t partition = view.partition();
    if (job.recovering && partition < job.partitions.size() && !job.partitions[partition]) {
      evidence.unheard.push_back(absl::StrCat("partition ", partition, " on shard ", shard.name(),
                                              " (", registration.address(), ")"));
    }
    if (partition >= job.partition_counters.size()) continue;
    const explain::Window<PartitionTimes>& counters = job.partition_counters[partition];
    evidence.partitions.push_back({partition, shard.name(),
                                   absl::ToDoubleSeconds(counters.Span(now_)),
                                   counters.Growth(now_)});
  }
}

void Core::AddCheckpoint(const Job& job, explain::Evidence& evidence) const {
  JobStatus status;
  AddCheckpoint(job, status);
  const CheckpointStatus& checkpoint = status.checkpoint();
  evidence.checkpoint.trouble = checkpoint.trouble();
  evidence.checkpoint.waits_for = WhatCheckpointWaitsFor(job);
  evidence.checkpoint.seconds =
      std::max(checkpoint.overdue_seconds(),
               checkpoint.trouble().empty() ? 0 : SecondsSince(job.checkpoint.failing_since));
  if (!checkpoint.has_last()) return;
  evidence.checkpoint.last = absl::StrFormat("is of step %d and %.0f s old",
                                             checkpoint.last().step(), checkpoint.age_seconds());
}

void Core::AddCopies(const Job& job, explain::Evidence& evidence) const {
  JobStatus status;
  AddCopies(job, status);
  evidence.unreplicated_seconds = status.unreplicated_seconds();
  evidence.unreplicated = status.partitions() - status.partitions_whole();
  evidence.copies_trouble = status.copies_trouble();
  for (const View& view : job.state.views()) {
    const double silent = SilentCopySeconds(job, view);
    if (silent <= 0 || view.learning()) continue;
    const RegisterRequest& backup = shards_.at(view.backup()).stored.registration();
    evidence.copies.push_back({view.partition(), shards_.at(view.primary()).name(), backup.name(),
                               backup.address(), silent,
                               job.partitions[view.partition()]->backup_behind()});
  }
  AddUndecided(job, evidence);
}

}  // namespace starling::coordinator
