// Merges the spans of several processes, each by its own clock, into one trace on one clock: rows
// on which spans nest, and an arrow from each push to its apply. Pure.
#ifndef STARLING_TOOLS_TRACE_MERGE_H_
#define STARLING_TOOLS_TRACE_MERGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/trace/clock_estimate.h"

namespace starling::trace {

// proto/daemon.proto, Span.
struct RecordedSpan {
  std::string name;
  std::string category;
  int64_t begin_us = 0;
  int64_t duration_us = 0;
  uint64_t thread = 0;
  int64_t clock = 0;
  uint32_t slice = 0;
  uint64_t flow = 0;
};

struct ProcessSpans {
  std::string name;
  bool worker = false;  // false: a shard
  std::string address;
  ClockEstimate clock;  // known
  std::vector<RecordedSpan> spans;
  uint64_t dropped = 0;  // overwritten before they were read
};

// By our clock.
struct Window {
  int64_t begin_us = 0;
  int64_t end_us = 0;
};

struct Trace {
  struct Row {
    size_t process = 0;
    std::string name;
  };
  struct Slice {
    size_t row = 0;
    RecordedSpan span;  // begin_us counts from the window's start
  };
  struct Arrow {
    size_t push = 0;  // indices of slices
    size_t apply = 0;
  };
  std::vector<Row> rows;
  std::vector<Slice> slices;  // by row, then by begin, the longer first
  std::vector<Arrow> arrows;
};

// The spans that begin within the window, and the applies of pushes that do. A thread's spans are
// on its row. Concurrent spans, such as pushes, use as many rows as they need to nest.
Trace Merge(const std::vector<ProcessSpans>& processes, const Window& window);

// The number of pushes that begin within the window and whose apply is not among the spans.
size_t PushesWithoutApply(const std::vector<ProcessSpans>& processes, const Window& window);

}  // namespace starling::trace

#endif  // STARLING_TOOLS_TRACE_MERGE_H_
