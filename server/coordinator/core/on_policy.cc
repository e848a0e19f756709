// Changes of a running job's policy: docs/protocol.md, section 8. A change is a durable, numbered
// record. First all members hold: they start nothing new and report what they have started. Then
// the step of the change is decided, after everything that was started. Steps below it belong to
// the previous policy. When all partitions have applied those, the new policy is in force.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/job_file.h"
#include "common/data_plan/job_steps.h"
#include "common/defences.h"
#include "common/placement/layout.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"
#include "server/coordinator/leases/lease_id.h"

namespace starling::coordinator {
namespace {

constexpr int kNoncesPerPolicyMax = 64;

// 0: the request has no nonce.
void AddNonce(StoredPolicy& stored, uint64_t nonce) {
  if (nonce == 0) return;
  auto& nonces = *stored.mutable_nonces();
  if (nonces.size() >= kNoncesPerPolicyMax) nonces.erase(nonces.begin());
  nonces.Add(nonce);
}

}  // namespace

const PolicyRecord& Job::policy() const {
  for (auto it = state.policies().rbegin(); it != state.policies().rend(); ++it) {
    if (it->record().in_force()) return it->record();
  }
  return state.policies(0).record();
}

// The pending change; null: none.
PolicyRecord* Job::next_policy() {
  for (StoredPolicy& stored : *state.mutable_policies()) {
    if (!stored.record().in_force()) return stored.mutable_record();
  }
  return nullptr;
}

const PolicyRecord* Job::next_policy() const { return const_cast<Job*>(this)->next_policy(); }

bool Job::holds() const {
  const PolicyRecord* next = next_policy();
  return next != nullptr && !next->has_step();
}

// The first policy is the one in the job file.
void Core::StartPolicies(Job& job) {
  StoredPolicy& first = *job.state.add_policies();
  *first.mutable_record()->mutable_policy() = job.spec().policy();
  first.mutable_record()->mutable_policy()->clear_guard();
  first.mutable_record()->set_step(0);
  first.mutable_record()->set_in_force(true);
  first.mutable_record()->set_by("job file");
}

// BSP gives each worker a part of every step. A guard may end in BSP, too.
absl::Status Core::CheckShares(const JobSpec& spec) {
  const bool bsp = spec.policy().kind() == Policy::BSP || spec.policy().has_guard();
  const uint64_t sharing = SharingMembers(spec.workers_min(), spec.workers_backup());
  if (!bsp || sharing <= spec.batch().micro_batches()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "workers.min: ", sharing, " workers cannot share the ", spec.batch().micro_batches(),
      " micro-batches of a BSP step: raise batch.microBatches or lower workers.min"));
}

// In BSP, sums wait for their siblings. If the job was planned without memory for that (another
// policy, no guard), the shards must have room now. A shard that has not reported its memory yet
// passes the check; if it lacks memory later, that copy stops. A backup needs as much as its
// primary, whose place it may take.
absl::Status Core::CheckMemoryForBsp(const Job& job) const {
  std::map<uint32_t, uint64_t> more;  // bytes, by shard
  for (const View& view : job.state.views()) {
    const auto& status = job.partitions[view.partition()];
    if (!status) continue;
    more[view.primary()] += status->bsp_bytes_more();
    if (view.backup() != 0) more[view.backup()] += status->bsp_bytes_more();
  }
  for (const auto& [id, bytes] : more) {
    const Shard& shard = shards_.at(id);
    if (bytes <= shard.memory_room.value_or(bytes)) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("consistency: under bsp, job ", job.name(), " would need ", (bytes >> 20) + 1,
                     " MiB more on shard ", shard.name(), " for sums that wait for others, but ",
                     *shard.memory_room >> 20,
                     " MiB are available: give the shard's machine more memory, or use ssp"));
  }
  return absl::OkStatus();
}

absl::Status Core::CheckPolicyChange(const Job& job, const Policy& policy) const {
  if (job.over()) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.name(), " is over (",
                                                      JobState_Name(job.state.state()),
                                                      "): its policy cannot change any more"));
  }
  if (RollsBack(job)) {
    return absl::UnavailableError(absl::StrCat(
        "job ", job.name(),
        " goes back to an earlier step, with the policy that it had there: try again in "
        "a moment"));
  }
  if (IsStopped(job)) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.name(), "'s wallTime is over: its policy cannot change any more"));
  }
  JobSpec spec = job.spec();
  spec.mutable_policy()->set_kind(policy.kind());
  spec.mutable_policy()->set_staleness(policy.staleness());
  STARLING_RETURN_IF_ERROR(config::ValidateSpec(spec));
  STARLING_RETURN_IF_ERROR(CheckShares(spec));
  if (policy.kind() == Policy::BSP && !job.bsp()) STARLING_RETURN_IF_ERROR(CheckMemoryForBsp(job));
  const auto waiting = std::count_if(
      job.state.policies().begin(), job.state.policies().end(),
      [](const auto& p) { return !p.record().in_force() && !p.record().checkpoint(); });
  if (static_cast<uint32_t>(waiting) >= limits::kPolicyChangesWaitingMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(waiting, " changes of job ", job.name(),
                     "'s policy are already pending: try again when they are in force"));
  }
  if (static_cast<uint32_t>(job.state.policies_size()) >= limits::kPoliciesPerJobMax) {
    return absl::ResourceExhaustedError(absl::StrCat("job ", job.name(), " has had ",
                                                     job.state.policies_size(),
                                                     " policies, which is the maximum"));
  }
  return absl::OkStatus();
}

void Core::On(const event::SetPolicy& event) {
  const SetPolicyRequest& request = event.request;
  Job* job = FindJob(request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(request.name()));
  SetPolicyReply reply;
  const auto answer = [&](uint64_t number) {
    reply.set_number(number);
    *reply.mutable_status() = StatusOf(*job);
    Reply(event.call, std::move(reply));
  };
  for (const StoredPolicy& stored : job->state.policies()) {
    const auto& nonces = stored.nonces();
    if (std::find(nonces.begin(), nonces.end(), request.nonce()) != nonces.end())
      return answer(stored.record().number());
  }
  if (absl::Status status = CheckPolicyChange(*job, request.policy()); !status.ok()) {
    return Reply(event.call, std::move(status));
  }
  Policy policy;
  policy.set_kind(request.policy().kind());
  if (policy.kind() == Policy::SSP) policy.set_staleness(request.policy().staleness());
  StoredPolicy& newest = *job->state.mutable_policies()->rbegin();
  if (PolicyText(newest.record().policy()) != PolicyText(policy)) {
    AddPolicy(*job, policy, "set", request.nonce());
  } else if (request.nonce() != 0) {  // a retry that arrives after another change must not undo it
    AddNonce(newest, request.nonce());
    SaveState(*job);
  }
  answer(job->state.policies().rbegin()->record().number());
}

StoredPolicy& Core::NewPolicy(Job& job, const Policy& policy, const std::string& by) {
  const uint64_t number =
      std::max(job.state.policies().rbegin()->record().number(), job.state.last_policy()) + 1;
  job.state.set_last_policy(number);
  StoredPolicy& stored = *job.state.add_policies();
  PolicyRecord& record = *stored.mutable_record();
  record.set_number(number);
  *record.mutable_policy() = policy;
  record.set_by(by);
  record.set_time(TimeText(wall()));
  job.policy_asked = now_;
  return stored;
}

void Core::AddPolicy(Job& job, const Policy& policy, const std::string& by, uint64_t nonce) {
  StoredPolicy& stored = NewPolicy(job, policy, by);
  AddNonce(stored, nonce);
  PolicyRecord& record = *stored.mutable_record();
  Log(job,
      absl::StrCat("policy ", record.number(), ", ", PolicyText(policy), ", was requested: ", by));
  if (!job.running()) {  // nothing was done under the previous policy
    record.set_step(job.first_step());
    record.set_in_force(true);
  }
  SaveState(job);
  TouchJob(job);
  if (job.running()) advance_.insert(job.uid());
}

// A change of a running job to the policy that it has, or will have: its step is that of a
// checkpoint. Returns its number.
uint64_t Core::AddCheckpointPolicy(Job& job) {
  // A change that waits comes first.
  const Policy newest = job.state.policies().rbegin()->record().policy();
  PolicyRecord& record = *NewPolicy(job, newest, "checkpoint").mutable_record();
  record.set_checkpoint(true);
  SaveState(job);
  TouchJob(job);
  advance_.insert(job.uid());
  return record.number();
}

// Removes records of checkpoints. People's nonces stay with the record before, which has the same
// policy: a retry must not undo another change.
bool Core::DropPolicies(Job& job, const std::function<bool(const PolicyRecord&)>& drops) {
  auto before = std::move(*job.state.mutable_policies());
  job.state.clear_policies();
  for (StoredPolicy& stored : before) {
    if (job.state.policies().empty() || !stored.record().checkpoint() || !drops(stored.record())) {
      *job.state.add_policies() = std::move(stored);
      continue;
    }
    for (const uint64_t nonce : stored.nonces())
      AddNonce(*job.state.mutable_policies()->rbegin(), nonce);
  }
  return job.state.policies_size() < before.size();
}

// Those that another one has followed, so that only changes that people made add up.
void Core::DropCheckpointPolicies(Job& job) {
  const uint64_t in_force = job.policy().number();
  DropPolicies(job, [&](const PolicyRecord& record) { return record.number() < in_force; });
}

// Those whose attempt is over before workers came to a step: nobody needs to hold any longer.
bool Core::DropUndecidedCheckpointPolicies(Job& job) {
  return DropPolicies(job, [](const PolicyRecord& record) { return !record.has_step(); });
}

void Core::AdvancePolicy(Job& job) {
  while (PolicyRecord* next = job.next_policy()) {
    if (!next->has_step()) {
      const std::optional<uint64_t> step = DecideStep(job, next->number());
      if (!step) return;
      next->set_step(*step);
      SaveState(job);
      if (!next->checkpoint()) {
        Log(job, absl::StrCat("policy ", next->number(), ", ", PolicyText(next->policy()),
                              ", takes effect at clock ", *step, ": no worker has started it"));
      }
      TouchJob(job);
    }
    if (!job.partitions.All([&](const auto& status) { return status.policy() >= next->number(); }))
      return;
    next->set_in_force(true);
    next->set_time(TimeText(wall()));
    DropTrainingTable(job);
    job.coverage_changed = true;
    EndTraining(job, next->step());
    if (!next->checkpoint()) {
      Log(job, absl::StrCat("policy ", next->number(), ", ", PolicyText(next->policy()),
                            ", is in force from clock ", next->step(), " on all ",
                            job.partitions.size(), " partitions"));
    }
    DropCheckpointPolicies(job);
    SaveState(job);
    TouchJob(job);
  }
}

// The step after all work that was started: what the members report after they were told to hold,
// and what partitions received from former members. A partition with the current roster accepts
// nothing more from former members.
std::optional<uint64_t> Core::DecideStep(const Job& job, uint64_t number) const {
  const uint64_t epoch = job.state.epoch();
  const uint64_t before = epoch * job.epoch_steps();
  uint64_t step = std::max(before, job.policy().step());
  const bool anyhow = DefenceMasked(Defence::kPolicyHold);
  const uint64_t roster = job.state.roster().number();
  if (!job.partitions.All([&](const auto& status) { return status.roster() >= roster; }))
    return std::nullopt;
  if (!anyhow) step = job.partitions.Max(step, &PartitionStatus::begun_steps);
  for (const Member& member : job.state.roster().members()) {
    const Worker& worker = workers_.at(member.worker());
    const bool holds =
        worker.hold_policy == number && worker.report.orders_seen() >= worker.hold_version;
    if (!holds && !anyhow) return std::nullopt;
    if (job.bsp())
      step = std::max(step, static_cast<uint64_t>(std::max<int64_t>(0, worker.report.clock())));
    for (const auto* leases : {&worker.report.leases_begun(), &worker.report.leases_done()}) {
      for (const uint64_t lease : *leases) {
        if (LeaseIsOf(lease, TRAIN, static_cast<uint32_t>(epoch)))
          step = std::max(step, before + LeaseItem(lease) + 1);
      }
    }
  }
  if (job.training) step = std::max(step, before + job.training->DoneEnd());
  return std::min(step, job.steps());
}

// How many of the open epoch's items belong to the policy in force.
uint64_t Core::ItemsOfPolicy(const Job& job, uint64_t items) {
  const PolicyRecord* next = job.next_policy();
  if (next == nullptr || !next->has_step()) return items;
  const uint64_t before = job.state.epoch() * job.epoch_steps();
  return next->step() <= before ? 0 : std::min(items, next->step() - before);
}

// The worker's measured speed outlives the table, or the worker's membership.
void Core::KeepSpeed(Job& job, uint32_t worker) {
  if (!job.training) return;
  if (const auto seconds = job.training->SecondsPerItem(worker))
    job.seconds_per_item[worker] = *seconds;
}

void Core::DropTrainingTable(Job& job) {
  if (!job.training) return;
  for (const Member& member : job.state.roster().members()) KeepSpeed(job, member.worker());
  job.training.reset();
}

}  // namespace starling::coordinator
