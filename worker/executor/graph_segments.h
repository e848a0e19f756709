// Which steps of a micro-batch are launched together. Private to the executor.
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

// If steps are captured and launched together, copies cannot start or be waited for inside a graph
// segment. A cut costs the device the start of one more launch, some microseconds, and lets the
// copies before it overlap with the work after it. So there is one cut per kSegmentBytesMin, whose
// copy takes longer than that over any bus, but no more than about kSegmentsMax: a longer wait for
// the last 1 / kSegmentsMax of all bytes does not matter.
inline constexpr uint64_t kSegmentBytesMin = 1 << 20;
inline constexpr uint64_t kSegmentsMax = 16;

// Forward: step i is the first to read `first_read[i]` bytes of parameters. A segment waits for all
// that it reads, so once it reads enough it ends before the next step that reads more.
std::vector<GraphSegment> CutBeforeReads(absl::Span<const uint64_t> first_read);
// Backward: `complete[i]` bytes of gradients are complete after step i. They are sent at the
// segment's end, which comes as soon as there are enough of them.
std::vector<GraphSegment> CutBehindGradients(absl::Span<const uint64_t> complete);

// All steps that lanes order, cut into segments.
struct GraphSegments {
  bool captured = false;  // whether segments are captured; if not, each step is one
  std::vector<GraphSegment> forward;
  std::vector<GraphSegment> backward;  // DeriveBackward's steps
  // Span names: "forward conv1", "backward fc..pool".
  std::vector<std::string> forward_names;
  std::vector<std::string> backward_names;
};

GraphSegments MakeGraphSegments(const ResolvedGraph& graph, const Layout& layout,
                                const SliceUse& use, bool captured);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_GRAPH_SEGMENTS_H_
