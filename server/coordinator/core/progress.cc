// A running job's progress: epochs, cuts, leases, evaluation, end (docs/protocol.md, 4 and 5).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/loss_text.h"
#include "common/data_plan/job_steps.h"
#include "common/graph/graph.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

// How often coverage is read while items are reported done that shards do not cover yet.
constexpr absl::Duration kCoverageReadPeriod = absl::Milliseconds(100);

}  // namespace

void Core::Advance(Job& job) {
  const auto& members = job.state.roster().members();
  const auto heard = [&](const Member& member) { return workers_.at(member.worker()).heard; };
  if (job.recovering && job.partitions.AllReported() &&
      std::all_of(members.begin(), members.end(), heard)) {
    job.recovering = false;
    Log(job, "all its workers and shards have reported: goes on");
    TouchJob(job);
  }
  GiveBackups(job);
  // The next epoch opens at once, unless an earlier epoch is still being evaluated: shards keep a
  // copy of only one epoch.
  AdvanceCurve(job, false);
  const auto is_cut = [&](const PartitionStatus& status) {
    return status.cut_epochs() > job.state.epoch();
  };
  while (job.running() && job.state.epoch() < job.epochs() && job.partitions.All(is_cut) &&
         (job.evaluations.empty() || job.evaluations.begin()->first >= job.state.epoch())) {
    CutEpoch(job);
  }
  if (!job.recovering) {
    AdvanceGuard(job);
    AdvancePolicy(job);
    AdvanceCheckpoint(job);
    GrantEvaluation(job);
    GrantTraining(job);
  }
  FinishIfDone(job);
}

void Core::CutEpoch(Job& job) {
  const uint32_t epoch = job.state.epoch();
  const EpochResult& result = RecordEpoch(job, epoch, StepsDone(job));
  if (epoch > 0 && job.train_sums.contains(epoch - 1)) {
    SaveTrainLoss(job, epoch - 1);
    job.train_sums.erase(epoch - 1);
  }
  Log(job, absl::StrFormat("epoch %d is complete: train loss %s, %.1f s", epoch + 1,
                           TrainLossText(result), result.seconds()));
  if (job.evaluates_at(epoch)) job.evaluations[epoch];
  DropTrainingTable(job);
  job.state.set_epoch(epoch + 1);
  job.state.set_epoch_opened_us(RunningMicros(job));
  job.last_cut = now_;
  KeepTrend(job);
  if (job.loss) job.state.set_train_loss(*job.loss);
  SaveState(job);
  SaveCurve(job);
  TouchJob(job);
}

std::vector<LeaseTable*> Job::lease_tables() {
  std::vector<LeaseTable*> tables;
  for (auto& [epoch, evaluation] : evaluations) {
    if (evaluation.leases) tables.push_back(&*evaluation.leases);
  }
  if (training) tables.push_back(&*training);
  return tables;
}

LeaseTableOptions Core::TableOptions(const Job& job, Purpose purpose, uint32_t epoch,
                                     uint64_t items) const {
  LeaseTableOptions options;
  options.purpose = purpose;
  options.epoch = epoch;
  options.items = items;
  options.micro_batches = job.spec().batch().micro_batches();
  options.ahead = options_.lease_ahead;
  options.items_min = options_.lease_items_min;
  options.items_max = options_.lease_items_max;
  return options;
}

void Core::GrantTraining(Job& job) {
  const uint64_t items = job.steps_in(job.state.epoch());
  if (job.bsp() || items == 0) return;
  if (job.state.stopping()) return;
  const bool fresh = !job.training;
  if (fresh) {
    job.training.emplace(TableOptions(job, TRAIN, job.state.epoch(), items));
    const uint64_t before = job.state.epoch() * job.epoch_steps();
    if (job.first_step() > before) job.training->Covered(0, job.first_step() - before);
  }
  const bool due =
      job.training->unconfirmed() > 0 && now_ >= job.coverage_read + kCoverageReadPeriod;
  if (fresh || job.coverage_changed || due) job.coverage_changed = !MarkCovered(job, *job.training);
  job.training->SetEnd(ItemsOfPolicy(job, items));
  JoinTable(job, *job.training);
}

uint64_t Core::EvaluationItems(const Job& job) {
  const uint64_t batch = job.spec().batch().global();
  return (job.stored.description().test_samples() + batch - 1) / batch;
}

void Core::GrantEvaluation(Job& job) {
  for (auto& [epoch, evaluation] : job.evaluations) {
    if (!evaluation.leases) {
      const uint64_t micro_batches = job.spec().batch().micro_batches();
      evaluation.leases.emplace(TableOptions(job, EVALUATE, epoch, EvaluationItems(job)));
      for (const auto& [begin, end] : evaluation.sums.Ranges()) {  // of whole items
        evaluation.leases->Covered(begin / micro_batches, end / micro_batches);
      }
    }
    JoinTable(job, *evaluation.leases);
  }
}

// Adds the members with the leases that they already hold, then grants more.
void Core::JoinTable(Job& job, LeaseTable& table) {
  bool changed = false;
  for (const Member& member : job.state.roster().members()) {
    const Worker& worker = workers_.at(member.worker());
    const auto seconds = job.seconds_per_item.find(worker.id());
    const bool known = table.AddWorker(
        worker.id(), now_,
        seconds == job.seconds_per_item.end() ? std::nullopt : std::optional(seconds->second));
    if (!known) {
      changed = true;
      for (const uint64_t lease : worker.report.leases_held()) table.Adopt(worker.id(), lease);
      if (table.options().purpose == TRAIN) {
        const auto& done = worker.report.leases_done();
        for (const uint64_t lease : done) table.Adopt(worker.id(), lease);
        table.Done(worker.id(), absl::MakeConstSpan(done.data(), done.size()), now_);
      }
    }
    if (worker.releasing() || worker.report.draining()) table.StopGranting(worker.id());
  }
  // Nothing is granted while members hold.
  const bool holds = table.options().purpose == TRAIN && job.holds();
  if ((holds || !table.Grant()) && !changed) return;
  for (const Member& member : job.state.roster().members())
    touched_workers_.insert(member.worker());
}

// Marks items that all partitions cover as done. Items that members reported done but that a
// partition does not cover are granted again. False: a partition has not reported this epoch.
bool Core::MarkCovered(Job& job, LeaseTable& table) {
  const auto coverage = job.partitions.CoveredByAll(job.state.epoch(), table.options().items);
  if (!coverage) return false;
  for (const auto& [begin, end] : coverage->covered) table.Covered(begin, end);
  job.coverage_read = now_;
  if (const uint64_t again = table.TakeBack(coverage->known, now_); again > 0) {
    Log(job, absl::StrCat(again, " steps were reported done, but shards do not have them after ",
                          absl::FormatDuration(table.options().cover_wait), ": they are repeated"));
  }
  return true;
}

// The epoch ended just before `step`.
EpochResult& Core::RecordEpoch(Job& job, uint32_t epoch, uint64_t step) {
  EpochResult& result = job.results[epoch];
  result.set_epoch(epoch);
  result.set_seconds(static_cast<double>(RunningMicros(job) - job.state.epoch_opened_us()) / 1e6);
  result.set_step(step);
  result.set_unix_seconds(absl::ToDoubleSeconds(wall() - absl::UnixEpoch()));
  SaveTrainLoss(job, epoch);
  return result;
}

// The loss over what has been reported so far. One who began amid the epoch may have less of it
// than an earlier coordinator had.
void Core::TakeTrainLoss(const Job& job, EpochResult& result) {
  const auto sums = job.train_sums.find(result.epoch());
  if (sums == job.train_sums.end()) return;
  const RangeSums::Total total = sums->second.Sum();
  if (total.samples == 0) return;
  const uint64_t begin = result.epoch() * job.epoch_steps();
  const bool whole = job.losses_from && *job.losses_from <= begin;
  const bool known =
      result.has_train_loss() && (result.samples() == 0 || result.train_samples() >= total.samples);
  if (!whole && known) return;
  result.set_train_loss(total.loss());
  result.clear_train_samples();
  result.clear_samples();
  const uint64_t steps = result.step() - std::min(result.step(), begin);
  const uint64_t samples = std::min(job.samples(), steps * job.spec().batch().global());
  if (whole || total.samples >= samples) return;
  result.set_train_samples(total.samples);
  result.set_samples(samples);
}

// Saves the epoch's result, if there is one.
void Core::SaveTrainLoss(Job& job, uint32_t epoch) {
  const auto result = job.results.find(epoch);
  if (result == job.results.end()) return;
  TakeTrainLoss(job, result->second);
  batch_.puts[records::JobResult(job.uid(), epoch)] = result->second.SerializeAsString();
}

// Whether nobody trains the job, and the partitions have told all that former members pushed: one
// that has the current roster takes nothing more from them.
bool Core::IsDeserted(const Job& job) {
  const Roster& roster = job.state.roster();
  return Serving(job.uid()).empty() && roster.members().empty() &&
         job.partitions.All([&](const auto& status) { return status.roster() >= roster.number(); });
}

void Core::FinishIfDone(Job& job) {
  for (auto it = job.evaluations.begin(); it != job.evaluations.end();) {
    const Evaluation& evaluation = it->second;
    if (!evaluation.leases || !evaluation.leases->AllDone()) {
      ++it;
      continue;
    }
    const uint32_t epoch = it->first;
    const RangeSums::Total total = evaluation.sums.Sum();
    EpochResult& result = job.results[epoch];
    result.set_test_loss(total.loss());
    const int64_t labels = JudgedLabels(job.spec().model());  // of a sample
    std::string accuracy;
    if (labels > 0) {
      result.set_test_accuracy(total.accuracy() / static_cast<double>(labels));
      accuracy = absl::StrFormat(", test accuracy %.4f", result.test_accuracy());
    }
    result.set_evaluated(true);
    NoteTested(job, epoch);
    SaveTrainLoss(job, epoch);
    TellCurve(job, nullptr, &result);
    Log(job, absl::StrFormat("epoch %d: test loss %s%s (%d samples)", epoch + 1,
                             LossText(total.loss()), accuracy, total.samples));
    it = job.evaluations.erase(it);
    TouchJob(job);
    advance_.insert(job.uid());  // the next cut may wait for this
  }
  const bool known = job.partitions.AllReported();
  if (known && !job.losses_from) job.losses_from = StepsDone(job);
  const bool abandoned = IsStopped(job) && IsDeserted(job);
  if (!job.running() || (!job.evaluations.empty() && !abandoned)) return;
  const uint32_t epochs = job.epochs();
  const bool stopped = job.state.epoch() < epochs;
  if (stopped && !job.state.stopping() && !abandoned) return;
  if (stopped && !known) return;  // right after a start
  // The last losses may still be in flight.
  const uint64_t full = job.epoch_steps();
  const uint64_t training_end = job.state.training_end();
  uint32_t last = epochs - 1;
  if (stopped)
    last = training_end > 0 ? static_cast<uint32_t>((training_end - 1) / full) : job.state.epoch();
  const uint64_t epoch_begin = last * full;
  const uint64_t begin = std::max(epoch_begin, job.losses_from.value_or(0));
  const uint64_t end = stopped ? training_end : epoch_begin + job.steps_in(last);
  const uint64_t steps = std::max(end, begin) - begin;
  auto sums = job.train_sums.find(last);
  const uint64_t told = sums == job.train_sums.end() ? 0 : sums->second.ids();
  const bool complete = told >= steps * job.spec().batch().micro_batches();
  if (!complete && !abandoned && now_ < job.last_cut + options_.metrics_wait) return;
  SaveTrainLoss(job, last);
  if (!stopped) return End(job, SUCCEEDED, "");
  const uint64_t done = StepsDone(job);
  if (done == 0)
    return End(job, FAILED,
               absl::StrCat("wallTime was over before any of ", job.steps(), " steps was done"));
  End(job, SUCCEEDED, absl::StrCat("stopped by wallTime at step ", done, " of ", job.steps()));
}

void Core::End(Job& job, JobState state, const std::string& reason) {
  AdvanceCurve(job, true);
  SaveCurve(job);
  TellCurve(job, nullptr, nullptr, true);
  job.state.set_steps_done(StepsDone(job));
  job.state.set_running_us(RunningMicros(job));
  job.state.set_ended_us(absl::ToUnixMicros(wall()));
  job.ended_at = now_;
  if (job.loss) job.state.set_train_loss(*job.loss);
  SetState(job, state);
  ++ended_changes_;
  job.state.set_reason(reason);
  job.state.clear_rollback();
  job.state.clear_rollback_is_free();
  job.rollback = {};
  EndCheckpoints(job);
  if (job.state.roster().members_size() > 0) {
    job.state.mutable_roster()->set_number(job.state.roster().number() + 1);
    job.state.mutable_roster()->clear_members();
  }
  if (state != SUCCEEDED) BeginOutput(job);
  SaveState(job);
  Log(job, absl::StrCat(JobState_Name(state), reason.empty() ? "" : ": ", reason));
  TouchJob(job);
  ReleaseRun(job);
  SettleValues(job);
  schedule_ = true;
}

// Its workers are free, and what was known of the run is void, but for a quarantine: the job may go
// on in another era.
void Core::ReleaseRun(Job& job) {
  for (auto& [id, worker] : workers_) {
    if (worker.job == job.uid() || worker.member_of == job.uid()) touched_workers_.insert(id);
    if (worker.job == job.uid()) worker.job = 0;
    if (worker.member_of == job.uid()) worker.member_of = 0;
    const auto aside = worker.aside.find(job.uid());
    if (aside != worker.aside.end() && (job.over() || !aside->second.quarantined))
      worker.aside.erase(aside);
  }
  job.training.reset();
  job.evaluations.clear();
  job.train_sums.clear();
  // Evidence is kept for running jobs only.
  job.partition_counters = {};
  job.departed.clear();
  job.copies.clear();
  job.undecided.clear();
  job.unfit.clear();
  job.seconds_per_item.clear();
  job.guard.reset();
  job.evaluation_seen.reset();
  job.non_finite.clear();
  job.recovering = false;
}

}  // namespace starling::coordinator
