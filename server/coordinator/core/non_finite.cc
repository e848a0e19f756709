// Losses and gradients that are not finite: a broken worker's, or the job's own? Another worker
// tells, which computes the same item (docs/failure_model.md, data and arithmetic).
//
//   a worker reports an item ──> it is set aside, and others do its work
//     ── the item is reported again, by whomever ──> the job diverges: fails, or goes back
//     ── others have done it ──> it was the worker; it is asked again, the third time quarantined
//     ── nobody else can do it ──> it is asked again; if it succeeds now, nothing is proved
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

// A worker that is lost may come back meanwhile, and do what another one is suspected for.
constexpr absl::Duration kOthersMayCome = absl::Seconds(10);

}  // namespace

void Core::TakeNonFinite(Worker& worker, Job& job, const Fault& fault, const std::string& text) {
  const Work& work = fault.work();
  const ItemAt at{work.purpose(), work.epoch(), work.first() / job.spec().batch().micro_batches()};
  if (!Exists(job, at)) return SetAside(worker, job, Fault::INTERNAL, text);  // its word alone
  // Nobody does again what is done. Where parts are repeated, another one may have done it.
  const bool repeated =
      job.bsp() && job.spec().workers_backup() > 0 && MayBeChecked(job, worker.id());
  const Suspicion suspicion{worker.id(), worker.stored.incarnation(), worker.name(),
                            /*asked=*/IsDone(job, at) && !repeated};
  const auto [before, first] = job.non_finite.try_emplace(at, suspicion);
  if (!first) {
    // A process that was started again is no other worker, and one that was asked again while it
    // was alone may have company by now.
    if (before->second.worker == worker.id() &&
        (!before->second.asked || MayBeChecked(job, worker.id()))) {
      before->second = suspicion;
      return SetAside(worker, job, Fault::NON_FINITE, text);
    }
    const std::string& by = before->second.name;
    return Diverge(job, absl::StrCat(text, "; ", by == worker.name() ? "it" : by,
                                     " found the same before, so it is the job's own"));
  }
  SetAside(worker, job, Fault::NON_FINITE, text);
}

// Values that may be right are dropped only where there is certainly a checkpoint to go back to.
bool Core::MayDropValues(const Job& job) const {
  return MayRollBack(job, /*counts=*/true) && checkpoints_listed_ && FindToGoBackTo(job) != nullptr;
}

// The values lead to what is not finite. In BSP they do so again, so going back twice is useless.
void Core::Diverge(Job& job, const std::string& what) {
  const bool asks = job.spec().go_back_if_not_finite();
  const bool again = job.state.has_diverged();
  if (asks && !again && MayDropValues(job)) {
    job.state.set_diverged(StepsDone(job));
    return BeginRollback(job, what, /*counts=*/true, absl::ZeroDuration());
  }
  End(job, FAILED,
      absl::StrCat(what, again ? "; the job has gone back to a checkpoint for that before" : "",
                   asks && !again && FindToGoBackTo(job) != nullptr ? WhyNoRollback(job)
                                                                    : HowToContinue(job)));
}

// Judges those whose items others have done, and asks those again whose items nobody else can do.
void Core::ReviewNonFinite(Job& job) {
  std::vector<Suspicion> over;
  std::erase_if(job.non_finite, [&](const auto& entry) {
    if (!IsDone(job, entry.first)) return false;
    over.push_back(entry.second);
    return true;
  });
  for (auto& [at, suspicion] : job.non_finite) {
    if (suspicion.asked || MayBeChecked(job, suspicion.worker)) continue;
    suspicion.asked = true;
    over.push_back(suspicion);
  }
  for (const Suspicion& suspicion : over) {
    if (!job.running()) return;  // it goes back
    const auto it = workers_.find(suspicion.worker);
    if (it == workers_.end() || it->second.stored.incarnation() != suspicion.incarnation) continue;
    Worker& worker = it->second;
    const auto aside = worker.aside.find(job.uid());
    if (aside == worker.aside.end() || aside->second.kind != Fault::NON_FINITE) continue;
    if (!suspicion.asked && Blame(worker, job)) {
      Quarantine(worker, job);
      continue;
    }
    const bool open =
        std::any_of(job.non_finite.begin(), job.non_finite.end(), [&](const auto& entry) {
          return entry.second.worker == worker.id() && !entry.second.asked;
        });
    if (!open) aside->second.ask_again = schedule_ = true;
  }
}

// Others have found finite values where the worker has not. Whether it is to be quarantined: not if
// it is the job's last worker. Except in BSP they began with other values, and an unstable job may
// look like a broken worker; then it would hit others, too.
bool Core::Blame(const Worker& worker, Job& job) {
  const bool bsp = job.bsp();
  const int times = ++job.blamed[{bsp, worker.id()}];
  Log(job, absl::StrCat("others found finite values where ", worker.name(), " did not, time ",
                        times, " (", limits::kNonFinitePerWorker, ": it is quarantined)"));
  const bool unstable =
      !bsp && std::any_of(job.blamed.begin(), job.blamed.end(), [&](const auto& entry) {
        const auto [in_bsp, id] = entry.first;
        return !in_bsp && id != worker.id();
      });
  return times >= limits::kNonFinitePerWorker && !unstable && OthersMayServe(job, &worker);
}

// The job goes on without this process, and in BSP, where what it computed was certainly wrong, so
// do all others. What it computed before was finite, but may be as wrong.
void Core::Quarantine(Worker& worker, Job& job) {
  Worker::Aside& aside = worker.aside.at(job.uid());
  const std::string why =
      absl::StrCat(worker.name(), " is quarantined", job.bsp() ? "" : " for this job",
                   ": what it computed for job ", job.name(), " was not finite ",
                   limits::kNonFinitePerWorker, " times where others found finite values, last in ",
                   aside.why, "; check its machine's memory and GPU, then restart it");
  aside.quarantined = true;
  aside.why = why;
  Log(job, why);
  if (job.bsp()) {
    worker.stored.set_quarantine(why);
    Save(worker);
    // It has been given to another job meanwhile.
    if (Job* other = FindRunning(worker.job)) SetAside(worker, *other, Fault::NON_FINITE, why);
  }
  if (job.spec().go_back_if_not_finite() && MayDropValues(job))
    BeginRollback(job, why, /*counts=*/true, absl::ZeroDuration());
}

// Whether others do, or may soon do, what the worker found not to be finite.
bool Core::MayBeChecked(const Job& job, uint32_t suspect) const {
  bool known = false;
  for (const auto& [id, other] : workers_) {
    if (id == suspect || other.left() || !MayServe(other, job)) continue;
    if (other.job == job.uid() && !other.fenced()) return true;
    known |= !other.fenced() || now_ < other.last_heard + kOthersMayCome;
  }
  return known && now_ < job.staffed + kOthersMayCome;
}

bool Core::Exists(const Job& job, const ItemAt& at) {
  if (at.epoch >= job.epochs()) return false;
  if (at.purpose == EVALUATE) return at.item < EvaluationItems(job);
  return at.purpose == TRAIN && at.item < job.steps_in(at.epoch);
}

bool Core::IsDone(const Job& job, const ItemAt& at) {
  if (at.purpose == EVALUATE) return !job.evaluations.contains(at.epoch);
  if (at.epoch != job.state.epoch()) return at.epoch < job.state.epoch();
  const auto coverage = job.partitions.CoveredByAll(at.epoch, job.steps_in(at.epoch));
  return coverage &&
         std::any_of(coverage->covered.begin(), coverage->covered.end(), [&](const auto& range) {
           return range.first <= at.item && at.item < range.second;
         });
}

}  // namespace starling::coordinator
