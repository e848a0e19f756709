// A verified contribution becomes a record (SSP, async) or a part of its step's tree (BSP).
// docs/protocol.md, section 2.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

void Partition::On(const Verified& verified) {
  recheck_policy_ = true;
  const auto it = in_flight_.find(verified.payload);
  if (it == in_flight_.end()) return;
  const FrameHeader& header = it->second.header;
  if (verified.digest != header.digest && !DefenceMasked(Defence::kDigest)) {
    return RefuseAsSent(verified.payload, Answer::kBadDigest,
                        absl::StrCat("the payload has digest ", verified.digest,
                                     ", its header says ", header.digest),
                        ": send it again");
  }
  if ((header.view < since_ || !IsPrimary()) && !DefenceMasked(Defence::kViewFence)) {
    return RefuseInFlight(verified.payload, Answer::kStaleView, StaleViewText(header));
  }
  if (!fault_.empty()) return RefuseInFlight(verified.payload, Answer::kStopped, fault_);
  if (verified.first_non_finite >= 0 && !DefenceMasked(Defence::kFiniteCheck))
    return RefuseNonFinite(verified.payload, static_cast<uint32_t>(verified.first_non_finite));
  if (ordered_.bsp()) return AddToTree(verified.payload);
  OrderContribution(verified.payload);
}

Partition::InFlight Partition::TakeInFlight(BufferId payload) {
  const auto it = in_flight_.find(payload);
  InFlight taken = std::move(it->second);
  in_flight_.erase(it);
  const auto key =
      in_flight_by_key_.find(InFlightKey(taken.header.key.slice, taken.header.key.work));
  if (key != in_flight_by_key_.end() && key->second == payload) in_flight_by_key_.erase(key);
  return taken;
}

void Partition::RefuseInFlight(BufferId payload, Answer answer, const std::string& text) {
  const InFlight refused = TakeInFlight(payload);
  for (const Waiter& waiter : refused.waiters) Refuse(waiter, answer, text, waiter.request.clock);
  Do(Release{payload});
}

UpdateScalars Partition::DecideScalars(const SliceWork& slice, const WorkRange& item,
                                       uint64_t samples, Lsn base) const {
  UpdateScalars scalars;
  scalars.rate = static_cast<float>(static_cast<double>(config_.rate(config_.JobStep(item))) *
                                    slice.info.rate_scale);
  scalars.decay = slice.info.decay;
  if (samples > 0 && samples < config_.batch) {
    scalars.scale =
        static_cast<float>(static_cast<double>(config_.batch) / static_cast<double>(samples));
  }
  scalars.t = ordered_.NextT(slice.info.id);
  scalars.lag = ordered_.bsp() ? 0 : ordered_.LagOf(slice.info.id, base);
  return scalars;
}

void Partition::RefuseNonFinite(BufferId payload, uint32_t element) {
  const FrameHeader& header = in_flight_.at(payload).header;
  RefuseAsSent(payload, Answer::kNonFinite,
               absl::StrCat("worker ", header.origin.worker.value,
                            " sent a gradient that is not finite for ",
                            config_.name_of_element(header.key.slice, element), " in step ",
                            config_.JobStep(header.key.work)),
               "");
}

// Nothing of the contribution counts, because of its bytes. What others sent for the same work may
// be good, but its bytes were not kept. So may what its worker sent in another incarnation, or for
// another lease.
void Partition::RefuseAsSent(BufferId payload, Answer answer, const std::string& text,
                             absl::string_view remedy) {
  const InFlight refused = TakeInFlight(payload);
  for (const Waiter& waiter : refused.waiters) {
    const bool sender = waiter.request.origin == refused.header.origin;
    Refuse(waiter, sender ? answer : Answer::kOverBudget,
           absl::StrCat(text, sender ? remedy : ", for the same work: send yours again"),
           waiter.request.clock);
  }
  Do(Release{payload});
}

// The contribution stays in flight until it is applied, so that retries can join it.
void Partition::OrderContribution(BufferId payload) {
  const FrameHeader& header = in_flight_.at(payload).header;
  const SliceWork& slice = *FindSlice(header.key.slice);
  Record record;
  record.kind = RecordKind::kApply;
  record.slice = header.key.slice;
  record.work = header.key.work;
  record.samples = header.samples;
  record.scalars = DecideScalars(slice, header.key.work, header.samples, header.base_lsn);
  record.elements = slice.info.elements;
  record.digest = header.digest;
  record.origin = header.origin;
  record.clock = header.clock;
  record.skipped = (header.flags & frame_flags::kSkipped) != 0;
  if (!NextLossScale(record.slice, record.skipped, header.loss_scale_log2,
                     config_.JobStep(record.work), header.origin, &record.loss_scale)) {
    return RefuseInFlight(payload, Answer::kStopped, fault_);
  }
  Order(std::move(record), payload, {});
}

void Partition::AddToTree(BufferId payload) {
  InFlight part = TakeInFlight(payload);
  SliceWork& slice = *FindSlice(part.header.key.slice);
  const WorkRange& work = part.header.key.work;
  // While it was verified, ranges that contain it may have sealed its step.
  if (config_.JobStep(work) < static_cast<int64_t>(Sealed(slice)) &&
      !DefenceMasked(Defence::kDedup)) {
    Waiters* seal = FindSeal(slice, work);
    for (const Waiter& waiter : part.waiters) {
      if (seal == nullptr) {
        Ack(waiter, Answer::kAlreadyCounted, log_.applied(), waiter.request.clock);
      } else {
        seal->push_back(waiter);
      }
    }
    Do(Release{payload});
    return;
  }
  const auto first = static_cast<uint32_t>(work.first % config_.micro_batches);
  const SubtreeSum::Outcome outcome = slice.tree.Insert(first, work.count, payload);
  slice.unsealed.insert(slice.unsealed.end(), part.waiters.begin(), part.waiters.end());
  if (outcome.duplicate) {
    ++counters_.duplicate_sums;
    Do(Release{payload});
  } else {
    if (config_.backup_workers > 0) slice.lateness.Arrived(part.header.origin.worker, first, now_);
    if ((part.header.flags & frame_flags::kSkipped) != 0 && !slice.overflowed.has_value())
      slice.overflowed = part.header.origin;
  }
  for (const BufferId replaced : outcome.replaced) {
    ++counters_.replaced_sums;
    Do(Release{replaced});
  }
  for (const SubtreeSum::Merge& merge : outcome.merges) {
    Do(MergeSums{slice.info.id, merge.into, merge.from});
    Do(Release{merge.from});
  }
  if (outcome.complete) Seal(slice, part.header, outcome.root);
}

void Partition::Seal(SliceWork& slice, const FrameHeader& last, BufferId sum) {
  Record record;
  record.kind = RecordKind::kApply;
  record.slice = slice.info.id;
  record.work = config_.ItemRange(last.key.work);
  record.clock = config_.JobStep(record.work);
  record.samples = static_cast<uint32_t>(config_.SamplesIn(record.work));
  record.scalars = DecideScalars(slice, record.work, record.samples, Lsn());
  record.elements = slice.info.elements;
  record.digest = last.key.work.count == config_.micro_batches ? last.digest : 0;
  if (const std::optional<Origin> by = std::exchange(slice.overflowed, std::nullopt)) {
    record.skipped = true;
    record.origin = *by;
  }
  ++counters_.sealed;
  const auto version = static_cast<uint64_t>(record.clock) + 1;
  if (config_.backup_workers > 0) slice.lateness.Sealed(version, now_);
  if (slice.lateness.Of(version).by > absl::ZeroDuration()) ++counters_.late_steps;
  Waiters waiters;
  waiters.swap(slice.unsealed);
  if (slice.info.decided && !DefenceMasked(Defence::kDecisionHold))
    return Hold(std::move(record), sum, std::move(waiters));
  Order(std::move(record), sum, std::move(waiters));
}

}  // namespace starling
