// Which steps of a micro-batch are ordered together. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_GRAPH_SEGMENTS_H_
#define STARLING_WORKER_EXECUTOR_GRAPH_SEGMENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/graph/graph.h"
#include "common/placement/layout.h"
#include "worker/executor/slice_use.h"

namespace starling {

// Steps [begin, end): nodes of forward, or steps of backward.
struct GraphSegment {
  int begin = 0;
  int end = 0;
  friend bool operator==(const GraphSegment&, const GraphSegment&) = default;
};

// Where steps are captured and launched together, copies cannot begin or be waited for inside a
// segment. A cut costs the device the begin of one more launch, some microseconds, and lets the
// copies before it run beside what comes behind it: so there is one for each kSegmentBytesMin,
// which take longer than that over any bus, and, since a longer wait for the last 1 / kSegmentesMax
// of all bytes is not seen, no more of them than about kSegmentesMax.
inline constexpr uint64_t kSegmentBytesMin = 1 << 20;
inline constexpr uint64_t kSegmentesMax = 16;

// Forward: `first_read[i]` bytes of parameters are read by step i, and by none before it. A segment
// waits for all that it reads, and so ends in front of a step that reads more, when it reads enough
// itself.
std::vector<GraphSegment> CutBeforeReads(absl::Span<const uint64_t> first_read);
// Backward: `complete[i]` bytes of gradients are complete behind step i. They leave at the
// segment's end, which comes as soon as they are enough.
std::vector<GraphSegment> CutBehindGradients(absl::Span<const uint64_t> complete);

// All that lanes order, cut.
struct GraphSegments {
  bool captured = false;  // whether it is captured; else each step is a segment
  std::vector<GraphSegment> forward;
  std::vector<GraphSegment> backward;  // of DeriveBackward's steps
  // Of their spans: "forward conv1", "backward fc..pool".
  std::vector<std::string> forward_names;
  std::vector<std::string> backward_names;
};

GraphSegments MakeGraphSegments(const ResolvedGraph& graph, const Layout& layout,
                                const SliceUse& use, bool captured);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_GRAPH_SEGMENTS_H_
