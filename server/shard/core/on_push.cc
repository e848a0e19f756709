// PUSH, before its bytes are verified: docs/protocol.md, section 2, steps 4 and 5.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

void Partition::OnPush(const FrameReceived& frame, absl::Time deadline) {
  const FrameHeader& header = frame.header;
  SliceWork& slice = *FindSlice(header.key.slice);
  if (Covers(slice, header)) {
    Ack({frame.connection, header}, Answer::kAlreadyCounted, log_.applied(), header.clock);
    Do(Release{frame.payload});
    return;
  }
  if (Join(frame, slice)) return;
  if (EpochMustWait(header.key.work.epoch) || PolicyMustEnd(header.key.work))
    return Park(frame, deadline);
  if (!fault_.empty()) return Refuse(frame, {Verdict::kRefuse, Answer::kStopped, fault_});
  if (OpensTooMuch(header.key.work.epoch, config_.ItemOf(header.key.work))) {
    return Refuse(frame,
                  {Verdict::kRefuse, Answer::kOverBudget,
                   absl::StrCat(config_.open_items_max, " steps of epoch ", header.key.work.epoch,
                                " are open already, and step ", config_.ItemOf(header.key.work),
                                " is none of them: try again when steps before it are done")});
  }
  // No worker can compute the step after one that is not ordered yet, or that waits for its
  // decision.
  const uint64_t steps = ordered_.slice(slice.info.id).updates;
  if (ordered_.bsp() && config_.JobStep(header.key.work) > static_cast<int64_t>(steps)) {
    Refuse({frame.connection, header}, Answer::kStaleClock,
           absl::StrCat("step ", config_.JobStep(header.key.work), "; slice ",
                        header.key.slice.value, " has sealed ", steps),
           static_cast<Clock>(steps));
    Do(Release{frame.payload});
    return;
  }
  begun_steps_ =
      std::max(begun_steps_, static_cast<uint64_t>(config_.JobStep(header.key.work)) + 1);
  in_flight_.try_emplace(frame.payload, InFlight{header, {Waiter{frame.connection, header}}});
  in_flight_by_key_.insert_or_assign(InFlightKey(header.key.slice, header.key.work), frame.payload);
  Do(Verify{header.key.slice, frame.payload});
}

bool Partition::Covers(const SliceWork& slice, const FrameHeader& header) const {
  if (DefenceMasked(Defence::kDedup)) return false;
  const WorkRange& work = header.key.work;
  if (DefenceMasked(Defence::kBatchKey) && !applied_.bsp()) {
    const auto it = counted_from_.find(InFlightKey(header.key.slice, work));
    return it != counted_from_.end() && it->second == header.origin.replica;
  }
  return applied_.Covers(slice.info.id, work.epoch, config_.ItemOf(work));
}

// Members that keep to their leases never exceed the limit. Open items, and the lowest item, are
// always accepted, so the other items can make progress.
bool Partition::OpensTooMuch(uint32_t epoch, uint64_t item) const {
  if (ordered_.OpenItems(epoch) < config_.open_items_max) return false;
  const Coverage* all = ordered_.CoverageOf(epoch);
  const bool lowest = all != nullptr && all->floor() == item;
  return !lowest && !ordered_.IsOpen(epoch, item);
}

bool Partition::EpochMustWait(uint32_t epoch) const {
  if (DefenceMasked(Defence::kEpochGate)) return false;
  return epoch > open_epoch_ || epoch > applied_.cut_epochs();
}

// Work of the step at which the next policy begins, or later, is not accepted under the previous
// policy. A worker that pushes it did not hold, and gets its refusal when the policy is in force.
bool Partition::PolicyMustEnd(const WorkRange& work) const {
  return !policies_.empty() && !DefenceMasked(Defence::kPolicyHold) &&
         static_cast<uint64_t>(config_.JobStep(work)) >= policies_.front().step;
}

// Several retries may join one contribution, and a BSP step has up to 2M different ranges.
size_t Partition::WaitersMax() const {
  return limits::kJoinedRetriesMax + 2 * config_.micro_batches;
}

void Partition::TakeWaiter(Waiters& waiters, const FrameReceived& frame) {
  if (!AddWaiter(waiters, {frame.connection, frame.header}, WaitersMax())) {
    return Refuse(frame,
                  {Verdict::kRefuse, Answer::kOverBudget,
                   absl::StrCat(WaitersMax(),
                                " requests are already waiting for this contribution: try again")});
  }
  Do(Release{frame.payload});
}

// The waiters of a seal that is held, or ordered but without effect yet; null: there is none, or it
// may never take effect.
Partition::Waiters* Partition::FindSeal(const SliceWork& slice, const WorkRange& work) {
  HeldStep::Sum* held = held_.Find(slice.info.id);
  if (held != nullptr && held->record.work == config_.ItemRange(work)) return &held->waiters;
  if (!fault_.empty()) return nullptr;
  for (PartitionLog::Entry& entry : log_.pending()) {
    if (entry.record.kind == RecordKind::kApply && entry.record.slice == slice.info.id &&
        entry.record.work == config_.ItemRange(work)) {
      return &entry.waiters;
    }
  }
  return nullptr;
}

bool Partition::Join(const FrameReceived& frame, SliceWork& slice) {
  if (DefenceMasked(Defence::kJoin)) return false;
  const FrameHeader& header = frame.header;
  const auto key = in_flight_by_key_.find(InFlightKey(header.key.slice, header.key.work));
  if (key != in_flight_by_key_.end()) {
    InFlight& original = in_flight_.at(key->second);
    if (DefenceMasked(Defence::kBatchKey) &&
        original.header.origin.replica != header.origin.replica)
      return false;
    if (original.header.origin == header.origin && original.header.digest != header.digest) {
      Refuse(frame, {Verdict::kRefuse, Answer::kBadDigest,
                     "the same attempt came with different bytes before"});
      return true;
    }
    ++counters_.joined;
    TakeWaiter(original.waiters, frame);
    return true;
  }
  if (!ordered_.bsp()) return false;
  const WorkRange& work = header.key.work;
  const auto sealed = static_cast<int64_t>(Sealed(slice));
  if (config_.JobStep(work) == sealed &&
      slice.tree.Holds(static_cast<uint32_t>(work.first % config_.micro_batches), work.count)) {
    ++counters_.joined;
    ++counters_.duplicate_sums;
    TakeWaiter(slice.unsealed, frame);
    return true;
  }
  Waiters* seal = config_.JobStep(work) < sealed ? FindSeal(slice, work) : nullptr;
  if (seal == nullptr) return false;
  ++counters_.joined;
  TakeWaiter(*seal, frame);
  return true;
}

}  // namespace starling
