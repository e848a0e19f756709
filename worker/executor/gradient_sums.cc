#include "worker/executor/gradient_sums.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/executor/lane_times.h"

namespace starling {

size_t GradientSums::SpareBuffers(uint32_t micro_batches, int lanes, bool in_sink) {
  const size_t pairs = micro_batches / 2;
  const size_t in_order = static_cast<size_t>(lanes + 1) * std::bit_width(micro_batches);
  const size_t waiting = std::min(pairs, in_order);
  return waiting == 0 || !in_sink ? waiting : waiting - 1;
}

absl::StatusOr<std::unique_ptr<GradientSums>> GradientSums::Create(const Layout& layout,
                                                                   uint32_t micro_batches,
                                                                   int lanes, Device* device) {
  std::unique_ptr<GradientSums> sums(new GradientSums(layout, device));
  for (size_t i = 0; i < SpareBuffers(micro_batches, lanes, sums->in_sink_); ++i) {
    STARLING_RETURN_IF_ERROR(sums->AllocateSpare());
  }
  MutexLock lock(&sums->mutex_);
  sums->free_.resize(layout.slices.size());
  for (std::vector<Spare*>& free : sums->free_) free.reserve(sums->spare_.size());
  return sums;
}

absl::Status GradientSums::AllocateSpare() {
  STARLING_ASSIGN_OR_RETURN(void* const memory,
                            device_->Allocate(layout_.elements * sizeof(float)));
  Spare& spare = spare_.emplace_back();
  spare.memory = static_cast<float*>(memory);
  for (size_t s = 0; !in_sink_ && s < layout_.slices.size(); ++s) {
    STARLING_ASSIGN_OR_RETURN(spare.read.emplace_back(), device_->CreateEvent());
  }
  return absl::OkStatus();
}

GradientSums::~GradientSums() {
  for (const Spare& spare : spare_) device_->Free(spare.memory);
}

absl::Status GradientSums::Begin(absl::Span<const WorkRange> ranges) {
  while (slots_.size() < ranges.size()) {
    std::vector<std::unique_ptr<Slot>> slots;
    for (size_t s = 0; s < layout_.slices.size(); ++s) {
      slots.push_back(std::make_unique<Slot>());
      if (in_sink_) continue;
      MutexLock lock(&slots.back()->mutex);
      STARLING_ASSIGN_OR_RETURN(slots.back()->added, device_->CreateEvent());
    }
    slots_.push_back(std::move(slots));
  }
  for (size_t r = 0; r < ranges.size(); ++r) {
    for (const std::unique_ptr<Slot>& slot : slots_[r]) {
      MutexLock lock(&slot->mutex);
      if (slot->sum == nullptr || slot->sum->leaves() != ranges[r].count || !slot->sum->empty()) {
        slot->sum = std::make_unique<SubtreeSum>(ranges[r].count);
      }
      slot->where.assign(ranges[r].count, nullptr);
      slot->done.clear();
      slot->done.reserve(std::bit_width(ranges[r].count) + 1);
      slot->pushed = nullptr;
      slot->last_lane = nullptr;
      slot->samples = 0;
    }
  }
  MutexLock lock(&mutex_);
  failure_ = absl::OkStatus();
  for (size_t s = 0; s < free_.size(); ++s) {
    free_[s].clear();
    for (Spare& spare : spare_) free_[s].push_back(&spare);
  }
  return absl::OkStatus();
}

absl::Status GradientSums::Add(size_t range, uint32_t leaf, SliceId slice, const float* gradient,
                               uint32_t samples, GradientSink& sink, Stream& stream, CopyQueue* out,
                               uint64_t* waited_us) {
  Slot& slot = *slots_[range][slice.value];
  uint32_t total = 0;
  const uint64_t begin = SpanRing::NowMicros();
  {
    MutexLock lock(&slot.mutex);
    {
      MutexLock unit_lock(&mutex_);
      if (!failure_.ok()) return failure_;
    }
    const bool first = slot.pushed == nullptr;
    if (first) {
      // Other lanes with this sum need the same buffer, so they may as well wait for the mutex.
      slot.asked_us = SpanRing::NowMicros();
      slot.pushed = sink.Acquire(range, slice);
      slot.got_us = SpanRing::NowMicros();
    }
    *waited_us += Overlap(begin, SpanRing::NowMicros(), slot.asked_us, slot.got_us);
    if (slot.pushed == nullptr) return absl::CancelledError("the unit was abandoned");
    slot.samples += samples;
    const absl::StatusOr<bool> complete =
        Insert(slot, first, range, leaf, slice, gradient, sink, stream, out);
    if (!complete.ok()) {
      // Before another lane gets the slot.
      MutexLock unit_lock(&mutex_);
      failure_.Update(complete.status());
      return complete.status();
    }
    if (!*complete) return absl::OkStatus();
    total = slot.samples;
  }
  sink.Ready(range, slice, total);
  return absl::OkStatus();
}

absl::StatusOr<bool> GradientSums::Insert(Slot& slot, bool first, size_t range, uint32_t leaf,
                                          SliceId slice, const float* gradient, GradientSink& sink,
                                          Stream& stream, CopyQueue* out) {
  const SubtreeSum::Outcome outcome = slot.sum->Insert(leaf, 1, BufferId(leaf + 1));
  STARLING_CHECK(!outcome.duplicate && outcome.replaced.empty(), "a micro-batch was added twice");
  STARLING_RETURN_IF_ERROR(FollowOthers(slot, stream));
  for (const SubtreeSum::Merge& merge : outcome.merges) {
    STARLING_RETURN_IF_ERROR(Merge(slot, merge, slice, gradient, stream));
  }
  if (outcome.merges.empty() && (in_sink_ || !outcome.complete)) {
    STARLING_ASSIGN_OR_RETURN(float* const place, PlaceFor(slot, first, slice, stream));
    STARLING_RETURN_IF_ERROR(device_->Copy(place, gradient, bytes(slice), stream));
    slot.where[leaf] = place;
  }
  if (!outcome.complete) {
    STARLING_RETURN_IF_ERROR(LeadOthers(slot, stream));
    STARLING_RETURN_IF_ERROR(GiveBackDone(slot, slice, stream));
    return false;
  }
  float* const sum = slot.where[outcome.root.value - 1];
  if (out != nullptr) {
    // Null for the gradient of a single micro-batch, which is stored nowhere else.
    const CopyQueue::Block block = {slot.pushed, sum == nullptr ? gradient : sum, bytes(slice)};
    STARLING_RETURN_IF_ERROR(out->Out(block, stream, {&sink, range, slice, slot.samples}));
    if (sum != nullptr) slot.done.push_back(sum);
    STARLING_RETURN_IF_ERROR(GiveBackDone(slot, slice, out->stream()));
    return false;
  }
  STARLING_CHECK(sum == slot.pushed, "the range's sum is not in the sink's buffer");
  STARLING_RETURN_IF_ERROR(GiveBackDone(slot, slice, stream));
  return true;
}

// Addition is commutative, so we choose where the sum lies: never in the lane's own buffer, and in
// the sink's if one of the two is.
absl::Status GradientSums::Merge(Slot& slot, const SubtreeSum::Merge& merge, SliceId slice,
                                 const float* gradient, Stream& stream) {
  float* into = slot.where[merge.into.value - 1];
  float* from = slot.where[merge.from.value - 1];
  if (into == nullptr || from == slot.pushed) std::swap(into, from);
  STARLING_CHECK(into != nullptr, "two sums in one buffer");
  STARLING_RETURN_IF_ERROR(
      device_->Add(into, from == nullptr ? gradient : from, elements(slice), stream));
  if (from != nullptr) slot.done.push_back(from);
  slot.where[merge.into.value - 1] = into;
  return absl::OkStatus();
}

absl::Status GradientSums::FollowOthers(Slot& slot, Stream& stream) {
  if (in_sink_ || slot.last_lane == nullptr || slot.last_lane == &stream) return absl::OkStatus();
  return stream.Wait(*slot.added);
}

absl::Status GradientSums::LeadOthers(Slot& slot, Stream& stream) {
  if (in_sink_) return absl::OkStatus();
  slot.last_lane = &stream;
  return stream.Record(*slot.added);
}

absl::Status GradientSums::GiveBackDone(Slot& slot, SliceId slice, Stream& stream) {
  if (in_sink_) STARLING_RETURN_IF_ERROR(stream.Synchronize());
  for (float* buffer : slot.done) {
    const auto spare = std::find_if(spare_.begin(), spare_.end(), [&](const Spare& candidate) {
      return PieceOf(candidate, slice) == buffer;
    });
    STARLING_CHECK(spare != spare_.end(), "a buffer that was given back is no spare one");
    if (!in_sink_) STARLING_RETURN_IF_ERROR(stream.Record(*spare->read[slice.value]));
    MutexLock lock(&mutex_);
    free_[slice.value].push_back(&*spare);
  }
  slot.done.clear();
  return absl::OkStatus();
}

absl::StatusOr<float*> GradientSums::TakeSpare(SliceId slice, Stream& stream) {
  Spare* spare = nullptr;
  {
    MutexLock lock(&mutex_);
    std::vector<Spare*>& free = free_[slice.value];
    STARLING_CHECK(!free.empty(), "more sums wait than were planned for");
    spare = free.back();
    free.pop_back();
  }
  if (!in_sink_) STARLING_RETURN_IF_ERROR(stream.Wait(*spare->read[slice.value]));
  return PieceOf(*spare, slice);
}

}  // namespace starling
