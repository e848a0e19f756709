// Where one lane's time goes during training units. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_LANE_TIMES_H_
#define STARLING_WORKER_EXECUTOR_LANE_TIMES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace starling {

enum class LanePhase : uint8_t { kData, kForward, kBackward, kValues, kHeld, kPush };
inline constexpr size_t kLanePhases = 6;

// How much of [begin, end) lies in [other_begin, other_end); 0 if the latter is empty.
constexpr uint64_t Overlap(uint64_t begin, uint64_t end, uint64_t other_begin, uint64_t other_end) {
  const uint64_t from = begin > other_begin ? begin : other_begin;
  const uint64_t to = end < other_end ? end : other_end;
  return to > from ? to - from : 0;
}

// Written by the lane, read by any thread. Each counter is read atomically and never decreases;
// together they are of about the same moment. Times are microseconds of one monotonic clock.
class LaneTimes {
 public:
  // From here on the lane computes a unit. Nothing is counted before, nor after End.
  void Begin(uint64_t now_us) { since_us_.store(now_us, std::memory_order_relaxed); }
  void End() { since_us_.store(kNotRunning, std::memory_order_relaxed); }

  // The time since Begin, or since the last Spend, went to `phase`; `part_us` of it, capped at the
  // whole, to `part`.
  void Spend(uint64_t now_us, LanePhase phase, LanePhase part = LanePhase::kHeld,
             uint64_t part_us = 0) {
    const uint64_t since = since_us_.load(std::memory_order_relaxed);
    if (since == kNotRunning) return;
    const uint64_t spent = now_us - since;
    if (part_us > spent) part_us = spent;
    Add(phase, spent - part_us);
    Add(part, part_us);
    since_us_.store(now_us, std::memory_order_relaxed);
  }

  uint64_t spent_us(LanePhase phase) const {
    return spent_us_[static_cast<size_t>(phase)].load(std::memory_order_relaxed);
  }
  // The time since the last Spend, not counted yet.
  uint64_t pending_us(uint64_t now_us) const {
    const uint64_t since = since_us_.load(std::memory_order_relaxed);
    return since == kNotRunning || since > now_us ? 0 : now_us - since;
  }

 private:
  static constexpr uint64_t kNotRunning = UINT64_MAX;

  void Add(LanePhase phase, uint64_t us) {  // one writer, so no read-modify-write is needed
    std::atomic<uint64_t>& sum = spent_us_[static_cast<size_t>(phase)];
    sum.store(sum.load(std::memory_order_relaxed) + us, std::memory_order_relaxed);
  }

  std::array<std::atomic<uint64_t>, kLanePhases> spent_us_{};
  std::atomic<uint64_t> since_us_ = kNotRunning;
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_LANE_TIMES_H_
