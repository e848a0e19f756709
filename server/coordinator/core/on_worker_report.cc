// A worker reports what it holds and what it has done.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "common/data_plan/job_steps.h"
#include "common/defences.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"
#include "server/coordinator/leases/lease_id.h"

namespace starling::coordinator {
namespace {

constexpr double kLossSmoothing = 0.05;  // weight of a global batch

}  // namespace

// A daemon that has seen a later coordinator must not follow this one.
bool Core::RefuseStaleCoordinator(CallId call, uint64_t reported_generation) {
  if (reported_generation <= generation() || DefenceMasked(Defence::kGeneration)) return false;
  Reply(call, absl::FailedPreconditionError(absl::StrCat(
                  "this coordinator has generation ", generation(), ", but the caller has seen ",
                  reported_generation,
                  ": another one was started after it, or it was started on old state; stop it")));
  return true;
}

// A shard's values belong to the jobs of its cluster. Another cluster may use the same numbers.
bool Core::RefuseOtherCluster(CallId call, uint64_t reported_cluster) {
  if (reported_cluster == 0 || reported_cluster == cluster_.cluster()) return false;
  Reply(call,
        absl::FailedPreconditionError(absl::StrFormat(
            "this coordinator belongs to cluster %016x, but the caller to cluster %016x: start "
            "the coordinator on its previous state, or restart the daemon, which then drops "
            "what it holds and joins this cluster",
            cluster_.cluster(), reported_cluster)));
  return true;
}

// A daemon must not report for another one: that would keep a dead daemon alive or replace a live
// one.
bool Core::RefuseImpostor(CallId call, const Daemon& daemon, const std::string& caller) {
  if (caller.empty() || caller == daemon.name()) return false;
  Reply(call, absl::PermissionDeniedError(
                  absl::StrCat(caller, " reports as ", daemon.id(), ", which is ", daemon.name())));
  return true;
}

void Core::On(const event::WorkerReport& event) {
  const WorkerReport& report = event.report;
  // A worker holds no values, so it may join this cluster under a new number.
  if (report.cluster() != 0 && report.cluster() != cluster_.cluster()) {
    return TellToRejoin<WorkerOrders>(event.call);
  }
  if (RefuseStaleCoordinator(event.call, report.generation())) return;
  auto it = workers_.find(report.worker());
  if (it == workers_.end() || it->second.stored.incarnation() != report.incarnation()) {
    return TellToRejoin<WorkerOrders>(event.call);
  }
  Worker& worker = it->second;
  if (RefuseImpostor(event.call, worker, event.caller)) return;
  if (worker.fenced()) return AnswerFenced(worker, event);
  const bool first = !worker.heard;
  worker.heard = true;
  worker.awaited = false;
  worker.last_heard = now_;
  if (report.sequence() > worker.sequence) {
    worker.sequence = report.sequence();
    TakeWorkerReport(worker, report, first);
  }
  if (first) schedule_ = true;
  if (worker.fenced()) return AnswerFenced(worker, event);
  Park(worker, event.call, report.orders_seen());
  touched_workers_.insert(worker.id());
  if (report.generation() < generation()) AnswerHeld(worker);
  ResolveRegistration(worker);
}

// A worker that left in good order needs no new incarnation, only an answer.
void Core::AnswerFenced(const Worker& worker, const event::WorkerReport& event) {
  if (!event.report.drained()) return TellToRejoin<WorkerOrders>(event.call);
  WorkerOrders orders = NewAnswer<WorkerOrders>();
  orders.set_version(worker.orders_version + 1);
  orders.set_sequence_taken(event.report.sequence());
  Reply(event.call, std::move(orders));
}

void Core::TakeWorkerReport(Worker& worker, const WorkerReport& report, bool first) {
  const bool was_free = IsFree(worker);
  const Run ran = worker.report.run();
  const bool was_draining = worker.report.draining();
  const bool had_memory = ran.job_uid() != 0 && !worker.report.has_fault();
  worker.report = report;
  NoteCounters(worker);
  SuspectUnreached(worker);

  if (report.fault().kind() != Fault::KIND_UNSPECIFIED) TakeFault(worker, report.fault());
  if (!report.inspections().empty()) worker.slow_to_look = false;
  for (const Inspection& inspection : report.inspections()) {
    for (auto& [name, submission] : submissions_) {
      if (submission.inspect != inspection.request() || submission.worker != worker.id()) continue;
      FinishSubmission(std::string(name), inspection);
      break;  // the iterators are invalid now
    }
  }
  // A worker that releases a job reports its last results with `run` already unset.
  const uint64_t uid = report.run().job_uid() != 0 ? report.run().job_uid() : worker.member_of;
  const auto is_of = [&](const Job& job) {
    return worker.member_of == job.uid() &&
           (report.run().job_uid() == 0 || SameRun(report.run(), job.run()));
  };
  if (Job* job = FindRunning(uid); job != nullptr && is_of(*job)) {
    TakeMetrics(*job, report);
    if (job->training) {
      const auto& done = report.leases_done();
      job->training->Done(worker.id(), absl::MakeConstSpan(done.data(), done.size()), now_);
    }
    // Evaluation leases that are done but whose sums did not arrive: the previous coordinator
    // received them.
    for (auto& [epoch, evaluation] : job->evaluations) {
      if (!evaluation.leases) continue;
      for (const uint64_t lease : report.leases_done())
        evaluation.leases->Return(worker.id(), lease);
    }
    advance_.insert(uid);
  }
  if (report.draining() && !was_draining && worker.member_of != 0) {
    if (Job* job = FindRunning(worker.member_of)) {
      Log(*job, absl::StrCat(worker.name(),
                             " was asked to stop: it finishes what it is doing and leaves"));
    }
  }
  if (report.drained()) {
    Lose(worker, "it has left in good order");
    return;
  }
  SetAsideWhoIsCutOff(worker);
  TakeMembership(worker, first);
  LetAskAgain(worker);
  if (had_memory && !SameRun(report.run(), ran)) AskAgain(worker);
  if (IsFree(worker) != was_free || !SameRun(report.run(), ran) ||
      report.draining() != was_draining)
    schedule_ = true;
}

void Core::TakeMembership(Worker& worker, bool first) {
  const uint64_t reported = worker.report.run().job_uid();
  if (worker.releasing() && reported != worker.member_of) {
    RemoveMember(worker, "was given to another job");
    AskAgain(worker);
  }
  // After a coordinator's start: the worker was preparing a job, or had just been chosen. A worker
  // that reports a fault releases the job first.
  if (first && worker.job == 0 && worker.member_of == 0 && reported != 0 &&
      !worker.report.has_fault()) {
    Job* job = FindRunning(reported);
    const bool may = job != nullptr && Room(*job) > 0 && MayServe(worker, *job);
    if (may && !worker.report.draining()) Order(worker, reported);
  }
  if (worker.job != 0 && worker.member_of == 0 && reported == worker.job &&
      worker.report.prepared() && !worker.report.draining()) {
    Job* job = FindRunning(worker.job);
    if (job != nullptr && SameRun(worker.report.run(), job->run())) Join(worker, *job);
  }
}

// The worker is prepared. Its data must match the job's: files of the same length may differ.
void Core::Join(Worker& worker, Job& job) {
  const uint64_t expected = job.stored.description().data_digest();
  if (expected == 0 || worker.report.data_digest() == expected) return AddMember(job, worker);
  SetAside(worker, job, Fault::OTHER_DATA,
           absl::StrCat(
               worker.name(), " sees different data than ",
               job.inspector.empty() ? "the worker that" : absl::StrCat(job.inspector, ", which"),
               " inspected it when job ", job.name(), " was submitted (digest ",
               absl::Hex(worker.report.data_digest()), ", expected ", absl::Hex(expected),
               "): give it the same files and restart it"));
}

void Core::TakeMetrics(Job& job, const WorkerReport& report) {
  const uint32_t micro_batches = job.spec().batch().micro_batches();
  for (const StepMetrics& metrics : report.finished()) {
    const Work& work = metrics.work();
    if (work.purpose() == EVALUATE) {
      auto it = job.evaluations.find(work.epoch());
      if (it == job.evaluations.end() || work.count() != micro_batches) continue;
      if (work.first() >= EvaluationItems(job) * micro_batches || !it->second.sums.Add(metrics))
        continue;
      if (!it->second.leases) continue;
      const uint64_t item = work.first() / micro_batches;
      it->second.leases->Finished(report.worker(), item, now_);
    } else if (work.purpose() == TRAIN) {
      const bool wanted =
          work.epoch() == job.state.epoch() || work.epoch() + 1 == job.state.epoch();
      const uint64_t ids = job.steps_in(work.epoch()) * micro_batches;
      const bool exists = work.first() < ids && work.count() <= ids - work.first();
      if (!wanted || !exists || !std::isfinite(metrics.loss_sum())) continue;
      if (!job.train_sums[work.epoch()].Add(metrics) || metrics.samples() == 0) continue;
      const double loss = metrics.loss_sum() / static_cast<double>(metrics.samples());
      if (!std::isfinite(loss)) continue;
      // A part of a batch has the weight of its share, no matter how many workers share the batch.
      const double batches =
          static_cast<double>(metrics.samples()) / static_cast<double>(job.spec().batch().global());
      const double weight = -std::expm1(batches * std::log1p(-kLossSmoothing));
      job.loss = job.loss ? *job.loss + weight * (loss - *job.loss) : loss;
      job.curve.Observe(metrics.loss_sum(), metrics.samples(), metrics.correct());
      if (PolicyGuard* guard = GuardOf(job)) guard->Observe(metrics.loss_sum(), metrics.samples());
    }
  }
}

// Only faults of the job that the worker is ordered to serve count, since a worker that was set
// aside repeats its fault until it has new orders.
void Core::TakeFault(Worker& worker, const Fault& fault) {
  Job* job = FindRunning(fault.run().job_uid());
  if (job == nullptr || !SameRun(fault.run(), job->run())) return;
  if (worker.job != job->uid()) return;
  const std::string text =
      fault.message().empty()
          ? absl::StrCat(worker.name(), " reported a fault of kind ",
                         Fault::Kind_Name(fault.kind()), " without a message: see its log")
          : std::string(CutUtf8(fault.message(), limits::kFaultBytesMax));
  if (fault.kind() == Fault::NON_FINITE) return TakeNonFinite(worker, *job, fault, text);
  SetAside(worker, *job, fault.kind(), text);
}

}  // namespace starling::coordinator
