#include "worker/executor/unit_times.h"

#include <utility>

namespace starling {

void UnitTimes::Begin(uint64_t now_us) {
  MutexLock lock(&mutex_);
  begin_us_ = now_us;
}

void UnitTimes::End(uint64_t now_us) {
  MutexLock lock(&mutex_);
  ended_us_ += now_us - std::exchange(begin_us_, 0);
}

ExecutorTimes UnitTimes::Read(uint64_t now_us) const {
  const auto mean = [this](auto&& of_lane) {
    uint64_t sum = 0;
    for (const LaneTimes& lane : lanes_) sum += of_lane(lane);
    return 1e-6 * static_cast<double>(sum) / static_cast<double>(lanes_.size());
  };
  const auto spent = [&](LanePhase phase) {
    return mean([&](const LaneTimes& lane) { return lane.spent_us(phase); });
  };
  ExecutorTimes times;
  times.data = spent(LanePhase::kData);
  times.forward = spent(LanePhase::kForward);
  times.backward = spent(LanePhase::kBackward);
  times.values = spent(LanePhase::kValues);
  times.held = spent(LanePhase::kHeld);
  times.push = spent(LanePhase::kPush);
  times.pending = mean([&](const LaneTimes& lane) { return lane.pending_us(now_us); });
  MutexLock lock(&mutex_);
  const uint64_t under_way_us = begin_us_ == 0 || now_us < begin_us_ ? 0 : now_us - begin_us_;
  times.total = 1e-6 * static_cast<double>(ended_us_ + under_way_us);
  return times;
}

}  // namespace starling
