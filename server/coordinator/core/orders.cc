// What daemons are told: the whole desired state, numbered, answered to held reports.
#include <algorithm>
#include <utility>

#include "common/data_plan/job_steps.h"
#include "server/coordinator/core/core.h"

namespace starling {

namespace {

// What a daemon needs of it.
void CopyPolicy(const PolicyRecord& from, PolicyRecord* to) {
  to->set_number(from.number());
  *to->mutable_policy() = from.policy();
  to->set_step(from.step());
  to->set_in_force(from.in_force());
}

}  // namespace

void Coordinator::Core::TouchJob(const Job& job) {
  for (const auto& [id, worker] : workers_) {
    if (worker.job == job.uid() || worker.member_of == job.uid()) touched_workers_.insert(id);
  }
  for (const View& view : job.state.views()) touched_shards_.insert(view.primary());
}

// `whole` false leaves out what never changes for the same ids: that is what versions are compared
// by.
WorkerOrders Coordinator::Core::BuildOrders(const Worker& worker, bool whole) {
  WorkerOrders orders;
  for (const auto& [name, submission] : submissions_) {
    if (submission.worker != worker.id()) continue;
    InspectRequest* inspect = orders.add_inspect();
    inspect->set_request(submission.inspect);
    if (whole) *inspect->mutable_spec() = submission.request.spec();
  }
  Job* job = worker.job == 0 ? nullptr : FindRunning(worker.job);
  if (job == nullptr) return orders;
  *orders.mutable_job()->mutable_run() = job->stored.description().run();
  if (whole) *orders.mutable_job() = job->stored.description();
  *orders.mutable_views() = job->state.views();
  *orders.mutable_roster() = job->state.roster();
  SetPolicyOrders(*job, orders);
  const uint32_t epochs = JobEpochs(job->spec(), job->samples());
  orders.set_epoch(std::min(job->state.epoch(), epochs - 1));
  orders.set_training_open(job->state.epoch() < epochs && !job->state.stopping());
  for (const auto& [epoch, evaluation] : job->evaluations) {  // before training
    if (!evaluation.leases) continue;
    for (Lease& lease : evaluation.leases->Held(worker.id()))
      *orders.add_leases() = std::move(lease);
  }
  if (job->training) {
    for (Lease& lease : job->training->Held(worker.id())) *orders.add_leases() = std::move(lease);
  }
  return orders;
}

void Coordinator::Core::SetPolicyOrders(const Job& job, WorkerOrders& orders) {
  CopyPolicy(job.policy(), orders.mutable_policy());
  const PolicyRecord* next = job.next_policy();
  if (next != nullptr && next->has_step()) orders.set_policy_end(next->step());
  orders.set_hold(job.holds());
}

ShardOrders Coordinator::Core::BuildOrders(const Shard& shard, bool whole) {
  ShardOrders orders;
  for (const auto& [uid, job] : jobs_) {
    ShardJob shard_job = BuildShardJob(job, shard, whole);
    if (shard_job.partitions_size() > 0) *orders.add_jobs() = std::move(shard_job);
  }
  return orders;
}

ShardJob Coordinator::Core::BuildShardJob(const Job& job, const Shard& shard, bool whole) const {
  ShardJob orders;
  for (const View& view : job.state.views()) {
    if (view.primary() != shard.id() || view.primary_incarnation() != shard.stored.incarnation())
      continue;
    PartitionOrders* partition = orders.add_partitions();
    partition->set_partition(view.partition());
    *partition->mutable_view() = view;
  }
  if (orders.partitions_size() == 0) return orders;
  *orders.mutable_job()->mutable_run() = job.stored.description().run();
  if (whole) *orders.mutable_job() = job.stored.description();
  *orders.mutable_roster() = job.state.roster();
  const PolicyRecord* next = job.next_policy();
  CopyPolicy(next != nullptr && next->has_step() ? *next : job.policy(), orders.mutable_policy());
  const uint32_t epochs = JobEpochs(job.spec(), job.samples());
  orders.set_epoch(std::min(job.state.epoch(), epochs - 1));
  // Copies stay until they are evaluated, the last epoch's until the job is deleted.
  uint32_t keep = std::min(job.state.epoch(), epochs - 1);
  if (!job.evaluations.empty()) keep = std::min(keep, job.evaluations.begin()->first);
  orders.set_discard_cuts_before(keep);
  if (job.spec().clip().scope() != Clip::GLOBAL && job.spec().precision() != PRECISION_FP16) return orders;
  for (const View& view : job.state.views()) {
    if (view.partition() == 0) *orders.mutable_decider() = view;
  }
  return orders;
}

void Coordinator::Core::SetVersion(Daemon& daemon, std::string body) {
  if (daemon.orders_version != 0 && body == daemon.orders_body) return;
  daemon.orders_version = std::max(daemon.orders_version, generation() << 32) + 1;
  daemon.orders_body = std::move(body);
}

void Coordinator::Core::Park(Daemon& daemon, CallId call, uint64_t orders_seen, Role role) {
  if (daemon.parked) {  // only the newest call of a daemon is held
    if (role == WORKER) AnswerHeld(workers_.at(daemon.id()));
    if (role == SHARD) AnswerHeld(shards_.at(daemon.id()));
  }
  daemon.parked = ParkedCall{call, now_ + options_.report_hold, orders_seen};
  (role == WORKER ? touched_workers_ : touched_shards_).insert(daemon.id());
}

// Right after a start, what a member was told before stands until all members have reported: it may
// hold leases that this coordinator does not know of yet.
bool Coordinator::Core::KeepsOldOrders(const Worker& worker) {
  const Job* job = FindRunning(worker.member_of);
  return job != nullptr && job->recovering && worker.parked && worker.parked->orders_seen != 0;
}

void Coordinator::Core::Settle(Worker& worker) {
  if (worker.fenced()) return;
  const WorkerOrders orders = BuildOrders(worker, false);
  SetVersion(worker, orders.SerializeAsString());
  // One that is on its way to another job begins nothing of the one that it leaves, by the same
  // orders.
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

void Coordinator::Core::Settle(Shard& shard) {
  if (shard.fenced()) return;
  SetVersion(shard, BuildOrders(shard, false).SerializeAsString());
  if (shard.parked && shard.parked->orders_seen != shard.orders_version) AnswerHeld(shard);
}

void Coordinator::Core::AnswerHeld(Worker& worker) {
  const bool keeps_old = KeepsOldOrders(worker);
  const ParkedCall parked = *std::exchange(worker.parked, std::nullopt);
  const bool unchanged = keeps_old || parked.orders_seen == worker.orders_version;
  WorkerOrders orders;
  if (!unchanged) orders = BuildOrders(worker, true);
  orders.set_generation(generation());
  orders.set_cluster(cluster_.cluster());
  orders.set_version(unchanged ? parked.orders_seen : worker.orders_version);
  orders.set_unchanged(unchanged);
  orders.set_sequence_taken(worker.sequence);
  Reply(parked.call, std::move(orders));
}

void Coordinator::Core::AnswerHeld(Shard& shard) {
  const ParkedCall parked = *std::exchange(shard.parked, std::nullopt);
  const bool unchanged = parked.orders_seen == shard.orders_version;
  ShardOrders orders;
  if (!unchanged) orders = BuildOrders(shard, true);
  orders.set_generation(generation());
  orders.set_cluster(cluster_.cluster());
  orders.set_version(shard.orders_version);
  orders.set_unchanged(unchanged);
  Reply(parked.call, std::move(orders));
}

void Coordinator::Core::TellToRejoin(CallId call, Role role) {
  if (role == WORKER) {
    WorkerOrders orders;
    orders.set_generation(generation());
    orders.set_cluster(cluster_.cluster());
    orders.set_rejoin(true);
    return Reply(call, std::move(orders));
  }
  ShardOrders orders;
  orders.set_generation(generation());
  orders.set_cluster(cluster_.cluster());
  orders.set_rejoin(true);
  Reply(call, std::move(orders));
}

}  // namespace starling
