#include "common/trace/span_ring.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace starling {
namespace {

uint64_t ThreadNumber() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  return number;
}

}  // namespace

absl::string_view SpanCategoryName(SpanCategory category) {
  constexpr absl::string_view kNames[] = {"data",  "forward", "backward", "push",  "pull",
                                          "apply", "wait",    "copy",     "device"};
  return kNames[static_cast<size_t>(category)];
}

SpanRing::SpanRing(size_t capacity) : capacity_(std::max<size_t>(capacity, 1)) {
  ring_.resize(capacity_);
}

uint64_t SpanRing::NowMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void SpanRing::Record(absl::string_view name, SpanCategory category, uint64_t begin_us,
                      uint64_t end_us, const SpanDetail& detail) {
  TraceSpan span;
  const size_t bytes = std::min(name.size(), TraceSpan::kNameBytes - 1);
  std::copy_n(name.data(), bytes, span.name_bytes.data());
  span.category = category;
  span.begin_us = begin_us;
  span.duration_us = end_us > begin_us ? end_us - begin_us : 0;
  span.thread = ThreadNumber();
  span.clock = detail.clock;
  span.slice = detail.slice;
  span.flow = detail.flow;
  MutexLock lock(&mutex_);
  ring_[recorded_++ % capacity_] = span;
}

SpanRing::Snapshot SpanRing::Read(uint64_t after_us, uint64_t after) const {
  Snapshot snapshot;
  MutexLock lock(&mutex_);
  if (after > recorded_) after = 0;
  const uint64_t first = std::max(after, recorded_ > capacity_ ? recorded_ - capacity_ : 0);
  snapshot.dropped = first - after;
  snapshot.recorded = recorded_;
  for (uint64_t i = first; i < recorded_; ++i) {
    const TraceSpan& span = ring_[i % capacity_];
    if (span.begin_us + span.duration_us > after_us) snapshot.spans.push_back(span);
  }
  return snapshot;
}

}  // namespace starling
