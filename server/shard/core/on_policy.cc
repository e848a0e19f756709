// The job's policy changes at a step: docs/protocol.md, section 8. A partition that has applied all
// before the step says so, and goes on under the policy before: the same work may have to be done
// again for another partition, and needs these values as they are. When all have said so, the
// policy is in force, and requests of the one before change nothing any more. The partition follows
// every policy in turn, also one of which it first hears when it is in force.
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
  // The coordinator has seen what was begun here; no member begins anything beyond.
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

// Readers and evaluation are of no policy.
bool Partition::IsTrainingRequest(const FrameHeader& header) {
  return header.type != FrameType::kPull ||
         (header.key.work.purpose != WorkPurpose::kEvaluate && !IsReaderPull(header));
}

bool Partition::IsOfEarlierPolicy(const FrameHeader& header) const {
  return header.policy < applied_.policy().number && IsTrainingRequest(header) &&
         !DefenceMasked(Defence::kPolicyFence);
}

// A close: what it names is applied, or it only moves the replica's clock, which stands anew. A
// pull gets no answer: the worker drops it when it hears of the policy.
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
