#include "worker/host/slice_versions.h"

#include <algorithm>

#include "common/base/clock.h"
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

void SliceVersions::Set(SliceId slice, Clock version, const SliceArrival& arrival,
                        int loss_scale_log2) {
  MutexLock lock(&mutex_);
  slices_[slice.value] = {version, arrival, loss_scale_log2};
  changed_.SignalAll();
}

int SliceVersions::LossScaleLog2(SliceId slice) {
  MutexLock lock(&mutex_);
  return slices_[slice.value].loss_scale_log2;
}

void SliceVersions::Forget() {
  MutexLock lock(&mutex_);
  slices_.assign(slices_.size(), OfSlice());
}

bool SliceVersions::Wait(SliceId slice, Clock version, uint64_t* held_us) {
  constexpr absl::Duration kSay = absl::Seconds(10);
  MutexLock lock(&mutex_);
  const OfSlice& of_slice = slices_[slice.value];
  const absl::Time began = MonotonicNow();
  const uint64_t begin_us = SpanRing::NowMicros();
  while (!cancelled_ && of_slice.version != version) {
    if (changed_.WaitWithDeadline(&mutex_, MonotonicNow() + kSay)) {
      spdlog::warn("compute has waited {:.0f} s for slice {} at clock {} (it has {})",
                   absl::ToDoubleSeconds(MonotonicNow() - began), slice.value, version,
                   of_slice.version);
    }
  }
  *held_us = HeldShare(begin_us, SpanRing::NowMicros(), of_slice.arrival);
  return !cancelled_;
}

void SliceVersions::Cancel() {
  MutexLock lock(&mutex_);
  cancelled_ = true;
  changed_.SignalAll();
}

void SliceVersions::Resume() {
  MutexLock lock(&mutex_);
  cancelled_ = false;
}

}  // namespace starling
