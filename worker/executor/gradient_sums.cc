#include "worker/executor/gradient_sums.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/base/internal/raw_logging.h"
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
    STARLING_ASSIGN_OR_RETURN(void* const memory,
                              device->Allocate(layout.elements * sizeof(float)));
    sums->spare_.push_back(static_cast<float*>(memory));
  }
  MutexLock lock(&sums->mutex_);
  sums->free_.resize(layout.slices.size());
  for (std::vector<float*>& free : sums->free_) free.reserve(sums->spare_.size());
  return sums;
}

GradientSums::~GradientSums() {
  for (float* buffer : spare_) device_->Free(buffer);
}

void GradientSums::Begin(absl::Span<const WorkRange> ranges) {
  while (slots_.size() < ranges.size()) {
    slots_.emplace_back();
    for (size_t s = 0; s < layout_.slices.size(); ++s) {
      slots_.back().push_back(std::make_unique<Slot>());
    }
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
      slot->samples = 0;
    }
  }
  MutexLock lock(&mutex_);
  for (size_t s = 0; s < free_.size(); ++s) {
    free_[s].clear();
    for (float* buffer : spare_) free_[s].push_back(buffer + layout_.slices[s].flat_begin);
  }
}

absl::Status GradientSums::Add(size_t range, uint32_t leaf, SliceId slice, const float* gradient,
                               uint32_t samples, GradientSink& sink, Stream& stream,
                               uint64_t* waited_us) {
  Slot& slot = *slots_[range][slice.value];
  uint32_t total = 0;
  const uint64_t begin = SpanRing::NowMicros();
  {
    MutexLock lock(&slot.mutex);
    const bool first = slot.pushed == nullptr;
    if (first) {
      // Others of this sum wait for the same buffer, so they may as well wait for the mutex.
      slot.asked_us = SpanRing::NowMicros();
      slot.pushed = sink.Acquire(range, slice);
      slot.got_us = SpanRing::NowMicros();
    }
    *waited_us += Overlap(begin, SpanRing::NowMicros(), slot.asked_us, slot.got_us);
    if (slot.pushed == nullptr) return absl::CancelledError("the unit was abandoned");
    slot.samples += samples;
    const SubtreeSum::Outcome outcome = slot.sum->Insert(leaf, 1, BufferId(leaf + 1));
    ABSL_RAW_CHECK(!outcome.duplicate && outcome.replaced.empty(), "a micro-batch was added twice");
    for (const SubtreeSum::Merge& merge : outcome.merges) {
      STARLING_RETURN_IF_ERROR(Merge(slot, merge, slice, gradient, stream));
    }
    if (outcome.merges.empty() && (in_sink_ || !outcome.complete)) {
      float* const place = PlaceFor(slot, first, slice);
      STARLING_RETURN_IF_ERROR(
          device_->Copy(place, gradient, elements(slice) * sizeof(float), stream));
      slot.where[leaf] = place;
    }
    if (outcome.complete) {
      float* const sum = slot.where[outcome.root.value - 1];
      STARLING_RETURN_IF_ERROR(Deliver(slot, sum, gradient, slice, stream));
    }
    STARLING_RETURN_IF_ERROR(stream.Synchronize());
    for (float* buffer : slot.done) GiveBackSpare(slice, buffer);
    slot.done.clear();
    if (!outcome.complete) return absl::OkStatus();
    total = slot.samples;
  }
  sink.Ready(range, slice, total);
  return absl::OkStatus();
}

// Adding is commutative, so where the sum lies is ours to choose: never in the lane's own buffer,
// and in the sink's if one of both is.
absl::Status GradientSums::Merge(Slot& slot, const SubtreeSum::Merge& merge, SliceId slice,
                                 const float* gradient, Stream& stream) {
  float* into = slot.where[merge.into.value - 1];
  float* from = slot.where[merge.from.value - 1];
  if (into == nullptr || from == slot.pushed) std::swap(into, from);
  ABSL_RAW_CHECK(into != nullptr, "two sums in one buffer");
  STARLING_RETURN_IF_ERROR(
      device_->Add(into, from == nullptr ? gradient : from, elements(slice), stream));
  if (from != nullptr) slot.done.push_back(from);
  slot.where[merge.into.value - 1] = into;
  return absl::OkStatus();
}

// `sum` is null where it is the gradient of one micro-batch, which lies nowhere else.
absl::Status GradientSums::Deliver(Slot& slot, float* sum, const float* gradient, SliceId slice,
                                   Stream& stream) {
  if (in_sink_) {
    ABSL_RAW_CHECK(sum == slot.pushed, "the range's sum is not in the sink's buffer");
    return absl::OkStatus();
  }
  const float* const from = sum == nullptr ? gradient : sum;
  STARLING_RETURN_IF_ERROR(device_->CopyFromDevice(
      slot.pushed, from, elements(slice) * sizeof(float), stream));
  if (sum != nullptr) slot.done.push_back(sum);
  return absl::OkStatus();
}

float* GradientSums::TakeSpare(SliceId slice) {
  MutexLock lock(&mutex_);
  std::vector<float*>& free = free_[slice.value];
  ABSL_RAW_CHECK(!free.empty(), "more sums wait than were planned for");
  float* const buffer = free.back();
  free.pop_back();
  return buffer;
}

void GradientSums::GiveBackSpare(SliceId slice, float* buffer) {
  MutexLock lock(&mutex_);
  free_[slice.value].push_back(buffer);
}

}  // namespace starling
