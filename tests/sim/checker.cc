#include "tests/sim/checker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/data_plan/job_steps.h"

namespace starling::sim {
JobTruth::JobTruth(World* world, const Workload* workload, const JobDescription& description,
                   const JobTruth* before)
    : world_(world),
      workload_(workload),
      run_{JobUid(description.run().job_uid()), description.run().era()},
      before_(before),
      first_step_(description.restore().step()),
      layout_(MakeLayout(description.spec()).value()),
      decisions_(world, workload, &layout_) {
  slices_.resize(layout_.slices.size());
  if (before != nullptr) BeginAt(description.restore(), *before);
  if (workload->partitions == 0) return;
  // Small models have one slice per partition. Several slices, and none, must work as well.
  for (auto& partition : layout_.partitions) partition.clear();
  for (Slice& slice : layout_.slices) {
    slice.partition = PartitionId(slice.id.value % workload->partitions % description.partitions());
    layout_.partitions[slice.partition.value].push_back(slice.id);
  }
}

// All below its first step was counted by the run before.
void JobTruth::BeginAt(const Restore& restore, const JobTruth& before) {
  policies_[PolicyNumber()] = {
      PolicyNumber(),
      {static_cast<PolicyKind>(restore.policy().kind()), restore.policy().staleness()},
      first_step_};
  for (SliceTruth& slice : slices_) {
    for (uint64_t step = 0; step < first_step_; ++step) {
      const ItemKey item = ItemOfStep(step);
      slice.times[item] = 1;
      slice.order[item] = step;
      slice.position[item] = Lsn();
    }
    slice.applied = first_step_;
  }
  decisions_.BeginAt(restore, ItemOfStep(first_step_), before.decisions_);
}

ItemKey JobTruth::ItemOfStep(uint64_t step) const {
  const uint64_t full = StepsInFullEpoch(workload_->spec, workload_->train_samples);
  return {static_cast<uint32_t>(step / full),
          step % full * workload_->spec.batch().micro_batches()};
}

bool JobTruth::IsPrefix(SliceId slice, uint64_t steps) const {
  const auto& order = slices_[slice.value].order;
  for (uint64_t step = 0; step < steps; ++step) {
    const auto at = order.find(ItemOfStep(step));
    if (at == order.end() || at->second >= steps) return false;
  }
  return true;
}

bool JobTruth::WasPolicyAt(uint64_t step, const ConsistencyPolicy& policy) const {
  ConsistencyPolicy before = PolicyOf(PolicyNumber());
  for (const auto& [number, at] : policies_) {
    if (at.step == step && at.policy == policy) return true;
    if (at.step < step) before = at.policy;
  }
  return before == policy;
}

uint64_t JobTruth::SkippedBelow(uint64_t step) const {
  uint64_t skipped = 0;
  for (uint64_t k = 0; k < step; ++k)
    skipped += decisions_.Skipped(SliceId(0), ItemOfStep(k)) ? 1 : 0;
  return skipped;
}

void JobTruth::OnRoster(PartitionId partition, const RosterList& roster) {
  served_ = served_ || !roster.members.empty();
  RosterList& held = rosters_[partition];
  if (roster.number > held.number) {
    world_->Count("roster changes");
    // A member that was removed, and may be back, computes nothing until it enters anew.
    for (const RosterMember& was : held.members) {
      const bool stays =
          std::any_of(roster.members.begin(), roster.members.end(), [&](const RosterMember& is) {
            return is.incarnation == was.incarnation && is.joined == was.joined;
          });
      if (!stays) OnParked(was.incarnation);
    }
    held = roster;
  }
}

// G1, fencing: a sender that is no member, or a frame of another run or view, changes nothing.
void JobTruth::OnAccepted(PartitionId partition, const FrameHeader& push, RunId run,
                          ViewNumber since, ViewNumber view) {
  const auto& members = rosters_[partition].members;
  const bool member = std::any_of(members.begin(), members.end(), [&](const RosterMember& m) {
    return m.worker == push.origin.worker && m.incarnation == push.origin.incarnation;
  });
  if (!member) {
    world_->Violate(Promise::kG1,
                    absl::StrCat("a push of worker ", push.origin.worker.value, ".",
                                 push.origin.incarnation.value, " was taken by partition ",
                                 partition.value, ", in whose roster it is not"));
  }
  const uint64_t sharing = SharingMembers(members.size(), workload_->spec.workers_backup());
  for (uint64_t i = sharing; i < members.size(); ++i) {
    if (members[i].worker != push.origin.worker) continue;
    if (PolicyOf(push.policy).kind == PolicyKind::kBsp)
      world_->Count("parts of a step from backup workers");
  }
  if (push.key.run != run) world_->Violate(Promise::kG1, "a push of another run was taken");
  if (push.view < since || push.view > view)
    world_->Violate(Promise::kG1, "a push of another view was taken");
  decisions_.OnAccepted(push, PolicyOf(push.policy).kind == PolicyKind::kBsp);
}

ConsistencyPolicy JobTruth::PolicyOf(PolicyNumber number) const {
  if (const auto it = policies_.find(number); it != policies_.end()) return it->second.policy;
  const Policy& policy = workload_->spec.policy();
  return {static_cast<PolicyKind>(policy.kind()), policy.staleness()};
}

// G2: a policy takes effect at a clock beyond every member's, the same one everywhere.
void JobTruth::OnPolicyOrdered(PartitionId partition, const PolicyAt& policy) {
  PolicyNumber& newest = ordered_[partition];
  if (policy.number <= newest) return;
  newest = policy.number;
  const PolicyAt& first = policies_.try_emplace(policy.number, policy).first->second;
  if (first != policy) {
    world_->Violate(Promise::kG2,
                    absl::StrCat("policy ", policy.number.value, " takes effect at step ",
                                 first.step, " and at step ", policy.step));
  }
  for (const SliceId slice : layout_.partitions[partition.value]) {
    for (const auto& [key, times] : slices_[slice.value].times) {
      const uint64_t step = JobStep(*workload_, {WorkPurpose::kTrain, key.first, key.second, 1});
      if (step < policy.step) continue;
      return world_->Violate(
          Promise::kG2,
          absl::StrCat("policy ", policy.number.value, " takes effect at step ", policy.step,
                       ", but step ", step, " was counted for slice ", slice.value));
    }
  }
}

// G2: everything before the policy's step was counted under the previous policy, nothing beyond it.
void JobTruth::OnPolicySwitched(PartitionId partition, PolicyNumber number) {
  if (followed_[partition] >= number) return;  // its other copy did before
  world_->Count("policy switches");
  followed_[partition] = number;
  const PolicyAt& policy = policies_.at(number);
  for (const SliceId slice : layout_.partitions[partition.value]) {
    const size_t counted = slices_[slice.value].times.size();
    if (counted == policy.step) continue;
    return world_->Violate(
        Promise::kG2, absl::StrCat("partition ", partition.value, " follows policy ", number.value,
                                   " from step ", policy.step, ", but has counted ", counted));
  }
}

// G7: a job that is stopped ends at one step on all partitions.
void JobTruth::OnTrainingEnd(PartitionId partition, uint64_t step) {
  if (training_end_.value_or(step) != step) {
    world_->Violate(Promise::kG7, absl::StrCat("partition ", partition.value, " ends at step ",
                                               step, ", and another at ", *training_end_));
  }
  training_end_ = step;
}

// G6: each item once for each slice.
void JobTruth::OnApplied(PartitionId partition, const Record& record, const FrameHeader& push) {
  if (training_end_.has_value() && JobStep(*workload_, record.work) >= *training_end_) {
    world_->Violate(Promise::kG7,
                    absl::StrCat("work ", RangeToString(record.work), " was applied although ",
                                 "the job ends at step ", *training_end_));
  }
  decisions_.OnApplied(record, push, PolicyOf(push.policy).kind == PolicyKind::kBsp);
  SliceTruth& slice = slices_[record.slice.value];
  const auto key = ItemOf(*workload_, record.work);
  const int times = ++slice.times[key];
  if (times > 1) {
    world_->Violate(Promise::kG6, absl::StrCat("work ", RangeToString(record.work), " counted ",
                                               times, " times for slice ", record.slice.value,
                                               " in partition ", partition.value));
  }
  slice.order.try_emplace(key, slice.applied);
  slice.position.try_emplace(key, record.lsn);
  ++slice.applied;
}

// G7: the copy for evaluation has the values of the epoch's end.
void JobTruth::OnCut(SliceId slice, uint32_t epoch, const Values& values) {
  if (workload_->gradient != GradientKind::kCounting || workload_->poisoned) return;
  const auto [it, fresh] = cuts_.try_emplace({slice, epoch});
  if (fresh) {
    const uint64_t full = StepsInFullEpoch(workload_->spec, workload_->train_samples);
    it->second =
        ExpectedAtStep(slice, std::min((epoch + 1) * full, training_end_.value_or(UINT64_MAX)));
  }
  if (values == it->second) return;
  world_->Violate(Promise::kG7,
                  absl::StrCat("the copy at the cut of epoch ", epoch, " of slice ", slice.value,
                               " is not the sum of the epoch's contributions"));
}

void JobTruth::OnVersionRead(SliceId slice, uint64_t version, const Values& values) {
  if (workload_->gradient != GradientKind::kCounting || workload_->poisoned) return;
  if (values == ExpectedAtStep(slice, version)) return;
  world_->Violate(Promise::kG1,
                  absl::StrCat("a client that read version ", version, " of slice ", slice.value,
                               " did not get the sum of the steps before"));
}

ValueTruth JobTruth::OnValueAnswered(PartitionId partition, SliceId slice, uint64_t version,
                                     Lsn lsn, const PartitionState* state) const {
  ValueTruth truth;
  truth.version = version;
  truth.lsn = lsn;
  if (state != nullptr) {  // the other copy may be ahead
    truth.applied = state->slice(slice).updates;
    truth.policy = state->policy().number;
  } else {
    truth.applied = slices_[slice.value].applied;
    if (const auto it = followed_.find(partition); it != followed_.end()) truth.policy = it->second;
  }
  const auto roster = rosters_.find(partition);
  if (roster == rosters_.end()) return truth;
  for (const RosterMember& member : roster->second.members) {
    const auto it = replicas_.find(member.incarnation);
    if (it != replicas_.end() && it->second.active && it->second.policy == truth.policy)
      truth.active.push_back({member.incarnation, it->second.joined});
  }
  return truth;
}

// G2: a joiner is not further behind the fastest replica than the bound.
void JobTruth::OnEntered(WorkerId worker, Incarnation incarnation, Clock clock,
                         PolicyNumber number) {
  Replica& replica = replicas_[incarnation];
  replica.active = true;
  replica.joined = clock;
  replica.units.erase(replica.units.begin(), replica.units.lower_bound(clock));
  replica.computing = -1;
  replica.policy = number;
  const ConsistencyPolicy policy = PolicyOf(number);
  if (policy.kind != PolicyKind::kSsp) return;
  if (!IsMember(incarnation)) return;  // it was removed while paused, and does not know yet
  const Clock bound = policy.staleness;
  for (const auto& [other, state] : replicas_) {
    if (other == incarnation || !state.active || state.policy != number ||
        state.computing - bound <= clock || !IsMember(other))
      continue;
    world_->Violate(Promise::kG2, absl::StrCat("worker ", worker.value, " joins at clock ", clock,
                                               " while another computes at ", state.computing,
                                               ", bound ", bound));
  }
}

// Whether it is in all partitions' rosters.
bool JobTruth::IsMember(Incarnation incarnation) const {
  return std::all_of(rosters_.begin(), rosters_.end(), [&](const auto& entry) {
    const auto& members = entry.second.members;
    return std::any_of(members.begin(), members.end(),
                       [&](const auto& m) { return m.incarnation == incarnation; });
  });
}

void JobTruth::OnParked(Incarnation incarnation) { replicas_[incarnation].active = false; }

// A worker that a roster has removed parks nowhere.
void JobTruth::OnClosed(Incarnation incarnation) {
  if (!IsMember(incarnation)) OnParked(incarnation);
}

bool JobTruth::AnyStepDone() const {
  const auto& first = slices_.front().times;
  return std::any_of(first.begin(), first.end(), [&](const auto& item) {
    return std::all_of(slices_.begin(), slices_.end(),
                       [&](const SliceTruth& slice) { return slice.times.contains(item.first); });
  });
}
void JobTruth::OnGone(Incarnation incarnation) { replicas_[incarnation].computing = -1; }

void JobTruth::OnUnit(Incarnation incarnation, Clock clock, const WorkRange& item) {
  replicas_[incarnation].units[clock] = item;
}

void JobTruth::OnAllValues(Incarnation incarnation, Clock clock) {
  replicas_[incarnation].computing = clock;
}

// G1: an ack is a promise that it was applied.
void JobTruth::OnPushAcked(const FrameHeader& ack, SliceId slice, const WorkRange& work) {
  if (ack.answer == Answer::kAlreadyCounted) world_->Count("ALREADY_COUNTED");
  SliceTruth& truth = slices_[slice.value];
  if (const auto it = truth.position.find(ItemOf(*workload_, work)); it != truth.position.end()) {
    truth.acked = std::max(truth.acked, it->second);
    return;
  }
  world_->Violate(Promise::kG1, absl::StrCat("the push of ", RangeToString(work), " for slice ",
                                             slice.value, " was acked, but not applied"));
}

bool JobTruth::Counted(SliceId slice, const WorkRange& item, size_t before) const {
  const auto& order = slices_[slice.value].order;
  const auto it = order.find(ItemOf(*workload_, item));
  return it != order.end() && it->second < before;
}

// G2: a value pulled at clock c includes all active replicas' updates stamped up to c - s - 1, and
// is never older than the value before.
void JobTruth::OnInstalled(Incarnation incarnation, SliceId slice, Clock clock,
                           const ValueTruth& value, const Values& bytes) {
  if (value.policy != value.pull_policy) {
    return world_->Violate(Promise::kG2,
                           absl::StrCat("a pull under policy ", value.pull_policy.value,
                                        " was answered under policy ", value.policy.value));
  }
  const ConsistencyPolicy policy = PolicyOf(value.policy);
  if (policy.kind == PolicyKind::kBsp) return CheckExact(slice, clock, value, bytes);
  Lsn& seen = replicas_[incarnation].seen[slice];
  if (value.lsn < seen) {
    world_->Violate(Promise::kG2, absl::StrCat("slice ", slice.value, " went back from position ",
                                               seen.value, " to ", value.lsn.value));
  }
  seen = std::max(seen, value.lsn);
  if (policy.kind != PolicyKind::kSsp) return;
  const Clock needed = clock - static_cast<Clock>(policy.staleness) - 1;
  for (const ValueTruth::Active& active : value.active) {
    const auto& units = replicas_[active.incarnation].units;
    for (Clock k = std::max(active.joined, needed - 4); k <= needed; ++k) {
      const auto unit = units.find(k);
      if (unit != units.end() && Counted(slice, unit->second, value.applied)) continue;
      if (active.joined != replicas_[active.incarnation].joined)
        continue;  // it has left and rejoined since
      world_->Violate(Promise::kG2,
                      absl::StrCat("a pull at clock ", clock, " does not have the update of clock ",
                                   k, " by incarnation ", active.incarnation.value, ", which ",
                                   unit == units.end() ? "was not started" : "is not applied"));
      return;
    }
  }
}

// BSP is s = 0: a value has exactly the updates of the steps before, also right after a switch to
// BSP.
void JobTruth::CheckExact(SliceId slice, Clock clock, const ValueTruth& value,
                          const Values& bytes) {
  if (value.version != static_cast<uint64_t>(clock)) {
    return world_->Violate(Promise::kG2,
                           absl::StrCat("a pull at step ", clock, " got version ", value.version));
  }
  if (workload_->gradient != GradientKind::kCounting || workload_->poisoned) return;
  if (bytes == ExpectedAtStep(slice, value.version)) return;
  world_->Violate(Promise::kG2, absl::StrCat("version ", clock, " of slice ", slice.value,
                                             " is not the sum of the steps before"));
}

const Values& JobTruth::ExpectedAtStep(SliceId slice, uint64_t step) {
  auto [it, fresh] = expected_.try_emplace(slice, 0, Values());
  auto& [at, values] = it->second;
  if (fresh || at > step) {
    at = 0;
    values = InitialValues(layout_.slices[slice.value]);
  }
  for (; at < step; ++at) {
    if (!decisions_.Skipped(slice, ItemOfStep(at)))
      AddStep(*workload_, layout_, slice, at, &values);
  }
  return values;
}

}  // namespace starling::sim
