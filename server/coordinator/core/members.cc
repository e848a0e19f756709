// Which workers serve which job: orders to serve, rosters, losses.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
std::vector<Worker*> Core::Serving(uint64_t job) {
  std::vector<Worker*> serving;
  for (auto& [id, worker] : workers_) {
    if (worker.job == job && !worker.fenced()) serving.push_back(&worker);
  }
  return serving;
}

// Orders the worker to serve `job` (0: none). The worker enters or leaves the roster by its
// reports.
void Core::Order(Worker& worker, uint64_t job) {
  worker.job = job;
  worker.ordered_at = ++last_order_;
  worker.release_since = now_;
  touched_workers_.insert(worker.id());
  if (worker.releasing()) {
    if (Job* left = FindRunning(worker.member_of); left != nullptr) {
      for (LeaseTable* table : left->lease_tables()) table->StopGranting(worker.id());
    }
  }
}

void Core::AddMember(Job& job, Worker& worker) {
  Roster& roster = *job.state.mutable_roster();
  roster.set_number(roster.number() + 1);
  Member member;
  member.set_replica(worker.id());
  member.set_worker(worker.id());
  member.set_incarnation(worker.stored.incarnation());
  member.set_name(worker.name());
  if (!job.bsp())
    member.set_joined_clock(
        job.partitions.Max(static_cast<int64_t>(job.first_step()), &PartitionStatus::clock_min));
  if (roster.members().empty()) job.staffed = now_;
  *roster.add_members() = member;
  std::sort(roster.mutable_members()->begin(), roster.mutable_members()->end(),
            [](const Member& a, const Member& b) { return a.replica() < b.replica(); });
  worker.member_of = job.uid();
  // The count of times outlives this.
  if (const auto it = worker.aside.find(job.uid());
      it != worker.aside.end() && it->second.times == 0) {
    worker.aside.erase(it);
  }
  job.departed.erase(worker.name());
  SaveState(job);
  Log(job, absl::StrCat(worker.name(), " joined: ", roster.members_size(), " of at most ",
                        job.spec().workers_max(), " workers"));
  TouchJob(job);
  advance_.insert(job.uid());
}

void Core::RemoveMember(Worker& worker, const std::string& why) {
  const uint64_t uid = std::exchange(worker.member_of, 0);
  Job* job = FindRunning(uid);
  if (job == nullptr) return;
  Roster& roster = *job->state.mutable_roster();
  roster.set_number(roster.number() + 1);
  auto* members = roster.mutable_members();
  members->erase(std::remove_if(members->begin(), members->end(),
                                [&](const Member& m) { return m.worker() == worker.id(); }),
                 members->end());
  uint64_t leases = 0;
  KeepSpeed(*job, worker.id());
  for (LeaseTable* table : job->lease_tables()) leases += table->RemoveWorker(worker.id());
  job->coverage_changed = true;
  SaveState(*job);
  std::string text = absl::StrCat(worker.name(), " left: ", why);
  if (leases > 0) absl::StrAppend(&text, "; its ", leases, " leases go to other workers");
  Log(*job, text);
  if (members->empty()) {
    job->staffed = now_;
    Log(*job, "no worker is left: waits for a new one");
  }
  TouchJob(*job);
  advance_.insert(uid);
}

bool Core::IsSetAside(const Worker& worker, const Job& job) {
  const auto it = worker.aside.find(job.uid());
  if (it == worker.aside.end()) return false;
  if (it->second.quarantined) return true;
  if (it->second.era != job.stored.description().run().era()) return false;
  // A retry must not take the worker from another job.
  return !it->second.ask_again || (worker.job != 0 && worker.job != job.uid());
}

// A worker has left a job and freed its GPU memory, so others that were set aside for lack of
// memory are asked again, for whichever job.
void Core::AskAgain(const Worker& left) {
  for (auto& [id, worker] : workers_) {
    if (&worker == &left) continue;
    for (auto& [uid, aside] : worker.aside)
      aside.ask_again = aside.ask_again || aside.kind == Fault::NO_ROOM;
  }
  schedule_ = true;
}

std::vector<const Worker*> Core::SetAsideFor(const Job& job) const {
  std::vector<const Worker*> workers;
  for (const auto& [id, worker] : workers_) {
    if (IsSetAside(worker, job)) workers.push_back(&worker);
  }
  return workers;
}

// Whether a worker other than `but` serves the job, prepares it, or could serve it. Workers of
// other jobs count, and so do workers that have not reported since the start.
bool Core::OthersMayServe(const Job& job, const Worker* but) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const Worker& worker = entry.second;
    if (&worker == but || worker.fenced() || worker.quarantined() || worker.report.draining())
      return false;
    const auto aside = worker.aside.find(job.uid());
    const bool asked_again = aside != worker.aside.end() && aside->second.ask_again;
    return asked_again || MayServe(worker, job);
  });
}

// The job goes on without the worker. If there is no other worker, a job that was never served
// fails. A job that was served waits, as if all its workers were lost, to keep what it has learned.
void Core::SetAside(Worker& worker, Job& job, Fault::Kind kind, const std::string& why) {
  const bool others = OthersMayServe(job, &worker);
  // Workers that share a GPU and prepare at the same time may each find the memory taken by the
  // others.
  const std::vector<const Worker*> before = SetAsideFor(job);
  const bool crowded = std::any_of(before.begin(), before.end(), [&](const Worker* other) {
    const Worker::Aside& aside = other->aside.at(job.uid());
    return aside.kind == Fault::NO_ROOM && aside.at > worker.ordered_at;
  });
  const bool again = kind == Fault::NO_ROOM && !others && crowded;
  const bool served = job.state.roster().number() > 1 || job.state.restarts_total() > 0;
  const bool alone = worker.member_of == job.uid() && job.state.roster().members_size() == 1;
  const bool nobody = alone || job.state.roster().members_size() == 0;
  const std::string what =
      again               ? "tries again, since others prepared the job at the same time, with "
      : others || !nobody ? "goes on without "
                          : "waits for a worker other than ";
  Log(job, absl::StrCat(what, worker.name(), ": ", why));
  Order(worker, 0);
  if (!again) {
    Worker::Aside& aside = worker.aside[job.uid()];
    const int times = aside.times + (kind == Fault::KIND_UNSPECIFIED ? 1 : 0);
    aside = {.era = job.stored.description().run().era(),
             .at = ++last_order_,
             .kind = kind,
             .why = why,
             .times = times};
  }
  if (worker.member_of == job.uid()) {
    RemoveMember(worker,
                 kind == Fault::NO_ROOM ? "it has no memory for the job" : "it was set aside");
  }
  schedule_ = true;
  if (others || again || !nobody) return;
  if (!served) return End(job, FAILED, WhyNobodyServes(job));
  EndUnserved(job);
}

// Ends a job without members if all workers that could serve it are set aside for lasting causes.
// Lack of memory and of progress may pass, and values that are not finite until the worker is
// quarantined. Other causes last, unless a lost worker returns without them.
void Core::EndUnserved(Job& job) {
  const std::vector<const Worker*> aside = SetAsideFor(job);
  const bool served = job.state.roster().members_size() > 0;
  const bool lasts = std::all_of(aside.begin(), aside.end(), [&](const Worker* worker) {
    const Worker::Aside& why = worker->aside.at(job.uid());
    return why.kind != Fault::NO_ROOM && why.kind != Fault::KIND_UNSPECIFIED &&
           (why.kind != Fault::NON_FINITE || why.quarantined || worker->quarantined());
  });
  if (served || aside.empty() || !lasts || OthersMayServe(job, nullptr)) {
    job.unserved_since = absl::InfiniteFuture();
    return;
  }
  if (job.unserved_since == absl::InfiniteFuture()) job.unserved_since = now_;
  const bool all = aside.size() == workers_.size();
  if (all || now_ >= job.unserved_since + options_.unserved_wait) {
    End(job, FAILED, WhyNobodyServes(job));
  }
}

std::string Core::WhyNobodyServes(const Job& job) const {
  std::vector<std::string> reasons;
  for (const Worker* worker : SetAsideFor(job)) {
    reasons.push_back(worker->aside.at(job.uid()).why);
  }
  if (reasons.size() == 1) return reasons.front();
  return std::string(
      CutUtf8(absl::StrCat("no worker can serve the job: ", absl::StrJoin(reasons, "; ")),
              limits::kFaultBytesMax));
}

// Ends this incarnation of the worker, which was killed, fell silent, or left in good order.
void Core::Lose(Worker& worker, const std::string& why) {
  if (worker.fenced()) return;
  worker.stored.set_fenced(true);
  worker.stored.set_left(worker.report.drained());
  Save(worker);
  const bool served = std::exchange(worker.job, 0) != 0 || worker.member_of != 0;
  worker.aside.clear();  // its next incarnation may serve what this one could not
  NoteDeparture(worker, why);
  if (worker.member_of != 0) RemoveMember(worker, why);
  if (served) AskAgain(worker);
  sentences_.push_back(absl::StrCat(worker.name(), " is gone: ", why));
  if (worker.parked) {
    TellToRejoin<WorkerOrders>(worker.parked->call);
    worker.parked.reset();
  }
  for (auto& [name, submission] : submissions_) {
    if (submission.worker == worker.id()) AskWorkerToInspect(submission);
  }
  schedule_ = true;
}

// The shard's copies are lost. The values are lost where no other copy is complete.
void Core::Lose(Shard& shard, const std::string& why) {
  if (shard.fenced()) return;
  shard.stored.set_fenced(true);
  Save(shard);
  sentences_.push_back(absl::StrCat(shard.name(), " is gone: ", why));
  if (shard.parked) {
    TellToRejoin<ShardOrders>(shard.parked->call);
    shard.parked.reset();
  }
  for (const uint64_t uid : JobsOn(shard)) LoseCopies(*FindJob(uid), shard, why);
  schedule_ = true;
}

}  // namespace starling::coordinator
