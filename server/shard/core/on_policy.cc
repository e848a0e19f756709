// Changes of the job's policy at a step: docs/protocol.md, section 8. A partition that has applied
// everything before the step reports this and goes on under the previous policy, since the same
// work may have to be repeated for another partition, which needs these values unchanged. Once all
// partitions have reported, the policy is in force, and requests under the previous one change
// nothing. A partition follows every policy in turn, even one that is already in force when it
// first hears of it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

void Partition::TakePolicies(const OrdersReceived& orders) {
  in_force_ = std::max(in_force_, orders.policy.number);
  TakePolicy(orders.policy);
  if (orders.next_policy.has_value()) TakePolicy(*orders.next_policy);
  recheck_policy_ = true;
}

void Partition::TakePolicy(const PolicyAt& policy) {
  const PolicyAt& newest = policies_.empty() ? applied_.policy() : policies_.back();
  if (policy.number <= newest.number || !fault_.empty()) return;
  // The coordinator has seen what was started here, and no member starts anything beyond.
  const uint64_t least = std::max(newest.step, begun_steps_);
  if ((policy.step < least || policy.step > config_.steps) &&
      !DefenceMasked(Defence::kPolicyHold)) {
    fault_ = absl::StrCat("policy ", policy.number.value, " was ordered to take effect at step ",
                          policy.step, "; expected ", least, " to ", config_.steps);
    Do(ReportFault{fault_, Origin()});
    return;
  }
  policies_.push_back(policy);
}

bool Partition::IsDrained(uint64_t step) const {
  if (DefenceMasked(Defence::kPolicyDrain)) return true;
  return in_flight_.empty() && applied_.CoveredSteps() >= step;
}

void Partition::TryPolicy() {
  if (policies_.empty() || !IsPrimary() || !IsDrained(policies_.front().step)) return;
  const PolicyAt& next = policies_.front();
  if (drained_for_ != next.number) ++counters_.drains;
  drained_for_ = next.number;
  if (next.number > in_force_ || ordered_.policy().number >= next.number) return;
  Record record;
  record.kind = RecordKind::kPolicy;
  record.policy = next;
  Order(std::move(record), BufferId(), {});
}

void Partition::FinishPolicy() {
  const PolicyAt& policy = applied_.policy();
  while (!policies_.empty() && policies_.front().number <= policy.number) policies_.pop_front();
  Do(SwitchPolicy{policy.number, applied_.bsp(), policy.step});
  for (const auto& [replica, queue] : closes_) {
    for (const Waiter& waiter : queue) AnswerEarlierPolicy(waiter);
  }
  closes_.clear();
  ErasePulls([](const WaitingPull& pull) { return IsTrainingRequest(pull.request); });
  ++counters_.policies;
  recheck_parked_ = recheck_policy_ = true;
}

// Reads and evaluation belong to no policy.
bool Partition::IsTrainingRequest(const FrameHeader& header) {
  return header.type != FrameType::kPull ||
         (header.key.work.purpose != WorkPurpose::kEvaluate && !IsReaderPull(header));
}

bool Partition::IsOfEarlierPolicy(const FrameHeader& header) const {
  return header.policy < applied_.policy().number && IsTrainingRequest(header) &&
         !DefenceMasked(Defence::kPolicyFence);
}

// The work that a close names is applied already, or the close only moves the replica's clock,
// which the new policy has reset. A pull gets no answer: the worker drops it when it learns of the
// policy.
void Partition::AnswerEarlierPolicy(const Waiter& waiter) {
  const FrameHeader& request = waiter.request;
  ++counters_.earlier_policy;
  if (request.type == FrameType::kPull) return;
  Clock clock = request.clock;
  if ((request.flags & frame_flags::kEnter) && applied_.was_bsp())
    clock = static_cast<Clock>(applied_.policy().step);
  Ack(waiter, Answer::kAlreadyCounted, log_.applied(), clock);
}

void Partition::OnEarlierPolicy(const FrameReceived& frame) {
  const FrameHeader& header = frame.header;
  if (header.type == FrameType::kPush && !Covers(*FindSlice(header.key.slice), header)) {
    return Refuse(frame, {Verdict::kRefuse, Answer::kStaleClock,
                          absl::StrCat("policy ", header.policy.value, " ended at step ",
                                       applied_.policy().step)});
  }
  AnswerEarlierPolicy({frame.connection, header});
  if (frame.payload.value != 0) Do(Release{frame.payload});
}

}  // namespace starling
