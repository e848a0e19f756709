#include "worker/host/parameter_copy.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/defences.h"
#include "common/trace/span_ring.h"
#include "spdlog/spdlog.h"

namespace starling {

uint64_t HeldShare(uint64_t begin_us, uint64_t end_us, const SliceArrival& arrival) {
  const uint64_t took_us = arrival.arrived_us - arrival.asked_us;
  const uint64_t held_us = std::min(arrival.held_us, took_us);
  const uint64_t hold_begin_us = arrival.asked_us + (took_us - held_us) / 2;
  const uint64_t from_us = std::max(begin_us, hold_begin_us);
  const uint64_t to_us = std::min(end_us, hold_begin_us + held_us);
  return to_us > from_us ? to_us - from_us : 0;
}

ParameterCopy::ParameterCopy(const Layout& layout, session::Params params, float* values,
                             Installed installed)
    : layout_(layout), params_(params), values_(values), installed_(std::move(installed)) {
  MutexLock lock(&mutex_);
  versions_.resize(layout.slices.size());
}

void ParameterCopy::BeginUnit(session::UnitId unit) { units_.push_back({unit}); }

void ParameterCopy::AbandonUnit(session::UnitId unit) {
  for (Unit& reader : units_) reader.abandoned |= reader.id == unit;
}

void ParameterCopy::EndUnit(session::UnitId unit) {
  units_.erase(std::remove_if(units_.begin(), units_.end(),
                              [&](const Unit& reader) { return reader.id == unit; }),
               units_.end());
  if (waiting_.empty() || AbandonedUnitReads()) return;
  for (const SliceValue& value : std::exchange(waiting_, {})) Write(value);
}

bool ParameterCopy::AbandonedUnitReads() const {
  return std::any_of(units_.begin(), units_.end(),
                     [](const Unit& reader) { return reader.abandoned; });
}

void ParameterCopy::Install(SliceValue value) {
  if (AbandonedUnitReads() && !DefenceMasked(Defence::kReaders)) {
    return waiting_.push_back(std::move(value));
  }
  Write(value);
}

void ParameterCopy::Write(const SliceValue& value) {
  const Slice& slice = layout_.slices[value.slice.value];
  float* const to = values_ + slice.flat_begin;
  value.payload.CopyTo(to);
  {
    MutexLock lock(&mutex_);
    versions_[value.slice.value] = {value.version, value.arrival, value.loss_scale_log2};
    changed_.SignalAll();
  }
  if (installed_) installed_(value.slice, value.version, absl::MakeConstSpan(to, slice.elements));
}

void ParameterCopy::Forget() {
  waiting_.clear();
  MutexLock lock(&mutex_);
  versions_.assign(versions_.size(), Version());
}

Clock ParameterCopy::Wanted(SliceId slice, Clock version) const {
  const bool frozen =
      params_ == session::Params::kLive && layout_.slices[slice.value].kind == FROZEN;
  return frozen ? 0 : version;
}

bool ParameterCopy::Wait(SliceId slice, Clock version, uint64_t* held_us) {
  constexpr absl::Duration kSay = absl::Seconds(10);
  const Clock wanted = Wanted(slice, version);
  MutexLock lock(&mutex_);
  const Version& held = versions_[slice.value];
  const absl::Time began = MonotonicNow();
  const uint64_t begin_us = SpanRing::NowMicros();
  while (!cancelled_ && held.version != wanted) {
    if (changed_.WaitWithDeadline(&mutex_, MonotonicNow() + kSay)) {
      spdlog::warn("compute has waited {:.0f} s for slice {} at clock {} (it has {})",
                   absl::ToDoubleSeconds(MonotonicNow() - began), slice.value, wanted,
                   held.version);
    }
  }
  *held_us = HeldShare(begin_us, SpanRing::NowMicros(), held.arrival);
  return !cancelled_;
}

bool ParameterCopy::Has(SliceId slice, Clock version) const {
  const Clock wanted = Wanted(slice, version);
  MutexLock lock(&mutex_);
  return !cancelled_ && versions_[slice.value].version == wanted;
}

int ParameterCopy::LossScaleLog2() const {
  MutexLock lock(&mutex_);
  return versions_[kLossScaleSlice.value].loss_scale_log2;
}

void ParameterCopy::Cancel() {
  MutexLock lock(&mutex_);
  cancelled_ = true;
  changed_.SignalAll();
}

void ParameterCopy::Resume() {
  MutexLock lock(&mutex_);
  cancelled_ = false;
}

}  // namespace starling
