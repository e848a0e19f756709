// Orders to daemons: the desired state, numbered, sent in answers to held reports as changes since
// the version that the daemon has seen (docs/protocol.md, section 5).
#include <algorithm>
#include <utility>

#include "common/data_plan/job_steps.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {

namespace {

// Copies the fields that a shard needs.
void CopyPolicy(const PolicyRecord& from, PolicyRecord* to) {
  to->set_number(from.number());
  *to->mutable_policy() = from.policy();
  to->set_step(from.step());
  to->set_in_force(from.in_force());
}

}  // namespace

void Core::TouchJob(const Job& job) {
  for (const auto& [id, worker] : workers_) {
    if (worker.job == job.uid() || worker.member_of == job.uid()) touched_workers_.insert(id);
  }
  for (const View& view : job.state.views()) {
    touched_jobs_.emplace(view.primary(), job.uid());
    if (view.backup() != 0) touched_jobs_.emplace(view.backup(), job.uid());
  }
}

bool Told::Is(const Job* job, const std::string& rest) const {
  if (job == nullptr) return run_.job_uid() == 0 && rest_ == rest;
  return SameRun(run_, job->run()) && views_ == job->views_number &&
         roster_ == job->state.roster().number() && rest_ == rest;
}

void Told::Tell(const Job* job, std::string rest, uint64_t version, bool described) {
  version_ = version;
  rest_ = std::move(rest);
  if (job == nullptr) return run_.Clear();
  const bool fresh = !SameRun(run_, job->run());
  if (fresh) described_at_ = described ? 0 : version;
  if (fresh || views_ != job->views_number) views_at_ = version;
  if (fresh || roster_ != job->state.roster().number()) roster_at_ = version;
  run_ = job->run();
  views_ = job->views_number;
  roster_ = job->state.roster().number();
}

uint64_t Told::OldestUnseen(uint64_t seen) const {
  uint64_t oldest = version_;
  for (const uint64_t at : {described_at_, views_at_, roster_at_}) {
    if (at > seen) oldest = std::min(oldest, at);
  }
  return oldest;
}

template <typename Orders>
void Told::AddUnseen(const Job& job, uint64_t seen, bool described, Orders& orders) const {
  if (described_at_ > seen && !described) *orders.mutable_job() = job.stored.description();
  orders.set_roster_unchanged(roster_at_ <= seen);
  if (!orders.roster_unchanged()) *orders.mutable_roster() = job.state.roster();
}

// Versions also grow across a coordinator's restarts.
uint64_t Core::NextVersion(Daemon& daemon) const {
  daemon.orders_version = std::max(daemon.orders_version, generation() << 32) + 1;
  return daemon.orders_version;
}

// ---- Workers ----

// The parts that are always sent. AddUnseen adds those that the worker has not seen.
WorkerOrders Core::BuildOrders(const Worker& worker) {
  WorkerOrders orders;
  for (const auto& [name, submission] : submissions_) {
    if (submission.worker == worker.id()) orders.add_inspect()->set_request(submission.inspect);
  }
  Job* job = worker.job == 0 ? nullptr : FindRunning(worker.job);
  if (job == nullptr) return orders;
  *orders.mutable_run() = job->run();
  const PolicyRecord& policy = job->policy();
  orders.mutable_policy()->set_number(policy.number());
  *orders.mutable_policy()->mutable_policy() = policy.policy();
  const PolicyRecord* next = job->next_policy();
  if (next != nullptr && next->has_step()) orders.set_policy_end(next->step());
  orders.set_hold(job->holds());
  const uint32_t epochs = job->epochs();
  orders.set_epoch(std::min(job->state.epoch(), epochs - 1));
  orders.set_training_open(job->state.epoch() < epochs && !job->state.stopping());
  for (LeaseTable* table : job->lease_tables()) {
    for (Lease& lease : table->Held(worker.id())) *orders.add_leases() = std::move(lease);
  }
  return orders;
}

// Assigns a new version if the orders have changed.
void Core::NoteOrders(Worker& worker) {
  const WorkerOrders orders = BuildOrders(worker);
  const Job* job = worker.job == 0 ? nullptr : FindRunning(worker.job);
  std::string rest = orders.SerializeAsString();
  if (worker.orders_version != 0 && worker.told.Is(job, rest)) return;
  const uint64_t version = NextVersion(worker);
  worker.told.Tell(job, std::move(rest), version, false);
  std::map<uint64_t, uint64_t> inspect_at = std::exchange(worker.inspect_at, {});
  for (const InspectRequest& request : orders.inspect()) {
    const auto known = inspect_at.find(request.request());
    worker.inspect_at[request.request()] = known == inspect_at.end() ? version : known->second;
  }
}

void Core::AddUnseen(const Worker& worker, uint64_t seen, WorkerOrders& orders) const {
  for (InspectRequest& request : *orders.mutable_inspect()) {
    if (worker.inspect_at.at(request.request()) <= seen) continue;
    for (const auto& [name, submission] : submissions_) {
      if (submission.inspect == request.request())
        *request.mutable_spec() = submission.request.spec();
    }
  }
  if (!orders.has_run()) return;
  const Job& job = jobs_.at(worker.told.run().job_uid());
  // A worker that already serves the run got its description from the previous coordinator.
  worker.told.AddUnseen(job, seen, SameRun(worker.report.run(), orders.run()), orders);
  orders.set_views_unchanged(!worker.told.ViewsUnseen(seen));
  if (!orders.views_unchanged()) *orders.mutable_views() = job.state.views();
}

// ---- Shards ----

// Whether this incarnation of the shard hosts a partition of the job.
bool Core::IsOn(uint64_t uid, const Shard& shard) const {
  if (const auto archived = archive_.find(uid); archived != archive_.end()) {
    const auto& on = archived->second.on;
    return std::any_of(on.begin(), on.end(), [&](const Archived::Partition& partition) {
      return partition.shard == shard.id() && partition.incarnation == shard.stored.incarnation();
    });
  }
  const auto job = jobs_.find(uid);
  if (job == jobs_.end()) return false;
  const auto& views = job->second.state.views();
  return std::any_of(views.begin(), views.end(),
                     [&](const View& view) { return shard.hosts(view); });
}

std::set<uint64_t> Core::JobsOn(const Shard& shard) const {
  std::set<uint64_t> hosted;
  const auto add = [&](const auto& jobs) {
    for (const auto& [uid, job] : jobs) {
      if (IsOn(uid, shard)) hosted.insert(uid);
    }
  };
  add(jobs_);
  add(archive_);
  return hosted;
}

// Everything but the description, views and roster. Once the values are settled, shards free the
// rest.
ShardJob Core::BuildShardJob(const Job& job) const {
  ShardJob orders;
  *orders.mutable_run() = job.run();
  if (ValuesSettled(job)) {
    orders.set_over(true);
    if (const std::optional<uint64_t> sealed = SealedSteps(job)) orders.set_keep_version(*sealed);
    return orders;
  }
  CopyPolicy(job.policy(), orders.mutable_policy());
  if (const PolicyRecord* next = job.next_policy(); next != nullptr && next->has_step())
    CopyPolicy(*next, orders.mutable_next_policy());
  const uint32_t epochs = job.epochs();
  orders.set_epoch(std::min(job.state.epoch(), epochs - 1));
  // Copies are kept until they are evaluated, the last one until the job is over.
  uint32_t keep = std::min(job.state.epoch(), epochs - 1);
  if (!job.evaluations.empty()) keep = std::min(keep, job.evaluations.begin()->first);
  orders.set_discard_cuts_before(keep);
  if (job.state.has_training_end()) orders.set_training_end(job.state.training_end());
  AddCheckpoint(job, orders);
  if (job.spec().clip().scope() != Clip::GLOBAL && job.spec().precision() != PRECISION_FP16)
    return orders;
  for (const View& view : job.state.views()) {
    if (view.partition() == 0) *orders.mutable_decider() = view;
  }
  return orders;
}

void Core::NoteDropped(Shard& shard, uint64_t uid) {
  const auto told = shard.told.find(uid);
  const auto held = shard.held.find(uid);
  if (told == shard.told.end() && held == shard.held.end()) return;
  const Run run = told != shard.told.end() ? told->second.run() : held->second.run();
  if (told != shard.told.end()) {
    shard.changed.erase(told->second.version());
    shard.told.erase(told);
  }
  DropHeld(shard, uid);
  shard.dropped[NextVersion(shard)] = run;
}

// Assigns a new version if the orders for the job have changed. A shard gets no orders before it
// has reported everything that it holds.
void Core::NoteOrders(Shard& shard, uint64_t uid) {
  if (!shard.whole || shard.fenced()) return;
  if (!IsOn(uid, shard)) return NoteDropped(shard, uid);
  const Job& job = *FindJob(uid);
  const auto held = shard.held.find(uid);
  const bool holds = held != shard.held.end() && SameRun(held->second.run(), job.run());
  const auto& views = job.state.views();
  const auto hosted = std::count_if(views.begin(), views.end(),
                                    [&](const View& view) { return shard.hosts(view); });
  // The job has ended on the shard, which keeps no more than it is to keep: no orders are left.
  if (holds && held->second.over() && held->second.partitions() <= hosted &&
      !LearnsEnded(job, shard)) {
    if (const auto told = shard.told.find(uid); told != shard.told.end()) {
      shard.changed.erase(told->second.version());
      shard.told.erase(told);
      unpacked_.insert(uid);  // archiving may have waited for this
    }
    return;
  }
  std::string rest = BuildShardJob(job).SerializeAsString();
  Told& told = shard.told[uid];
  if (told.Is(&job, rest)) return;
  shard.changed.erase(told.version());
  // The previous coordinator sent the descriptions of the runs that the shard holds.
  told.Tell(&job, std::move(rest), NextVersion(shard), holds);
  shard.changed[told.version()] = uid;
}

// Adds as many changes as fit, oldest first. The orders' version is the last complete one.
void Core::AddChanges(const Shard& shard, uint64_t seen, ShardOrders& orders) {
  std::map<uint64_t, uint64_t> changes;  // uids by version; 0: a dropped job
  for (auto it = shard.changed.upper_bound(seen); it != shard.changed.end(); ++it) {
    changes[shard.told.at(it->second).OldestUnseen(seen)] = it->second;
  }
  for (auto it = shard.dropped.upper_bound(seen); it != shard.dropped.end(); ++it)
    changes[it->first] = 0;
  if (changes.empty()) return;
  orders.set_version(shard.orders_version);
  size_t bytes = 0;
  for (const auto& [version, uid] : changes) {
    if (bytes >= limits::kControlChangesBytesMax) {
      orders.set_version(version - 1);
      orders.set_more(true);
      return;
    }
    if (uid == 0) {
      *orders.add_dropped() = shard.dropped.at(version);
      bytes += orders.dropped().rbegin()->ByteSizeLong();
    } else {
      AddUnseen(shard, uid, seen, *orders.add_jobs());
      bytes += orders.jobs().rbegin()->ByteSizeLong();
    }
  }
}

void Core::AddUnseen(const Shard& shard, uint64_t uid, uint64_t seen, ShardJob& orders) {
  const Job& job = *FindJob(uid);
  const Told& told = shard.told.at(uid);
  orders = BuildShardJob(job);
  if (orders.over()) {
    for (const View& view : job.state.views()) {
      if (shard.hosts(view)) orders.add_partitions()->set_partition(view.partition());
    }
    return AddEndedCopies(job, shard, orders);
  }
  told.AddUnseen(job, seen, false, orders);
  orders.set_partitions_unchanged(!told.ViewsUnseen(seen));
  if (orders.partitions_unchanged()) return;
  for (const View& view : job.state.views()) {
    if (!shard.hosts(view)) continue;
    PartitionOrders* partition = orders.add_partitions();
    partition->set_partition(view.partition());
    *partition->mutable_view() = view;
    partition->set_backup(shard.backs(view));
    if (partition->backup()) partition->set_primary_name(shards_.at(view.primary()).name());
  }
}

// ---- Held reports ----

// After a start, a member keeps its old orders until all members have reported, since it may hold
// leases that this coordinator does not know yet.
bool Core::KeepsOldOrders(const Worker& worker) {
  const Job* job = FindRunning(worker.member_of);
  return job != nullptr && job->recovering && worker.parked && worker.parked->orders_seen != 0;
}

void Core::Settle(Worker& worker) {
  if (worker.fenced()) return;
  NoteOrders(worker);
  // A worker that leaves a job is also kept from starting its work by these orders.
  const Job* job = FindRunning(worker.releasing() ? worker.member_of : worker.job);
  const uint64_t holds = job != nullptr && job->holds() ? job->next_policy()->number() : 0;
  if (holds != worker.hold_policy) {
    worker.hold_policy = holds;
    worker.hold_version = holds == 0 ? 0 : worker.orders_version;
  }
  if (worker.parked && worker.parked->orders_seen != worker.orders_version &&
      !KeepsOldOrders(worker)) {
    AnswerHeld(worker);
  }
}

void Core::Settle(Shard& shard) {
  if (!shard.parked) return;
  const uint64_t seen = shard.parked->orders_seen;
  if (shard.changed.upper_bound(seen) != shard.changed.end() ||
      shard.dropped.upper_bound(seen) != shard.dropped.end())
    AnswerHeld(shard);
}

void Core::AnswerHeld(Worker& worker) {
  const bool keeps_old = KeepsOldOrders(worker);
  const ParkedCall parked = *std::exchange(worker.parked, std::nullopt);
  // A report to the previous coordinator does not say which of our orders the worker has; the next
  // one does.
  const bool unchanged = keeps_old || parked.orders_seen == worker.orders_version ||
                         worker.report.generation() < generation();
  WorkerOrders orders = NewAnswer<WorkerOrders>();
  if (!unchanged) {
    NoteOrders(worker);
    orders.MergeFrom(BuildOrders(worker));
    AddUnseen(worker, parked.orders_seen, orders);
  }
  orders.set_version(unchanged ? parked.orders_seen : worker.orders_version);
  orders.set_unchanged(unchanged);
  orders.set_sequence_taken(worker.sequence);
  Reply(parked.call, std::move(orders));
}

void Core::AnswerHeld(Shard& shard) {
  for (auto it = touched_jobs_.lower_bound({shard.id(), 0});
       it != touched_jobs_.end() && it->first == shard.id(); it = touched_jobs_.erase(it)) {
    NoteOrders(shard, it->second);
  }
  const ParkedCall parked = *std::exchange(shard.parked, std::nullopt);
  ShardOrders orders = NewAnswer<ShardOrders>();
  orders.set_version(parked.orders_seen);
  if (!options_.checkpoint_root.empty()) orders.set_checkpoint_nonce(options_.checkpoint_nonce);
  AddChanges(shard, parked.orders_seen, orders);
  orders.set_unchanged(orders.version() == parked.orders_seen);
  orders.set_sequence_taken(shard.sequence);
  if (shard.draining) *orders.mutable_drain() = shard.drain;
  Reply(parked.call, std::move(orders));
}

}  // namespace starling::coordinator
