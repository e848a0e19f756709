// A daemon's recent spans in a bounded ring: the newest overwrite the oldest, and overwritten spans
// are counted. Read through Daemon.Spans (proto/daemon.proto, whose Span has these fields); tools
// turn them into a trace.
//
// Thread-safe. Recording takes a short lock and allocates nothing.
#ifndef STARLING_COMMON_TRACE_SPAN_RING_H_
#define STARLING_COMMON_TRACE_SPAN_RING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/sync/mutex.h"

namespace starling {

enum class SpanCategory : uint8_t {
  kData,
  kForward,
  kBackward,
  kPush,
  kPull,
  kApply,
  kWait,
  kCopy,
  kDevice,  // work on a device that runs asynchronously
};

// "data", "forward", ...
absl::string_view SpanCategoryName(SpanCategory category);

struct TraceSpan {
  static constexpr size_t kNameBytes = 48;

  std::array<char, kNameBytes> name_bytes = {};  // truncated if longer; ends with 0
  SpanCategory category = SpanCategory::kData;
  uint64_t begin_us = 0;  // SpanRing::NowMicros
  uint64_t duration_us = 0;
  uint64_t thread = 0;  // a small number per thread
  int64_t clock = 0;
  uint32_t slice = 0;
  uint64_t flow = 0;  // joins a push with its apply; 0: none

  absl::string_view name() const { return name_bytes.data(); }
};

// Details beyond name and time.
struct SpanDetail {
  int64_t clock = 0;
  uint32_t slice = 0;
  uint64_t flow = 0;
};

class SpanRing {
 public:
  static constexpr size_t kCapacityDefault = 1 << 15;

  explicit SpanRing(size_t capacity = kCapacityDefault);
  SpanRing(const SpanRing&) = delete;
  SpanRing& operator=(const SpanRing&) = delete;

  // Microseconds on this process's monotonic clock.
  static uint64_t NowMicros();

  void Record(absl::string_view name, SpanCategory category, uint64_t begin_us, uint64_t end_us,
              const SpanDetail& detail = {});

  struct Snapshot {
    std::vector<TraceSpan> spans;  // in order of recording
    uint64_t dropped = 0;          // requested, but overwritten before this call
    uint64_t recorded = 0;         // since the start
  };

  // The spans that end after `after_us`, without the first `after` that were recorded. An `after`
  // above the total was counted by another process, and is taken as 0.
  Snapshot Read(uint64_t after_us, uint64_t after = 0) const;

 private:
  const size_t capacity_;
  mutable Mutex mutex_;
  std::vector<TraceSpan> ring_ ABSL_GUARDED_BY(mutex_);
  uint64_t recorded_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace starling

#endif  // STARLING_COMMON_TRACE_SPAN_RING_H_
