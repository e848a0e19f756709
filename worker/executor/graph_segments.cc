#include "worker/executor/graph_segments.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/graph/backward.h"

namespace starling {
namespace {

uint64_t Enough(absl::Span<const uint64_t> bytes) {
  const uint64_t all = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  return std::max(kSegmentBytesMin, (all + kSegmentsMax - 1) / kSegmentsMax);
}

std::vector<GraphSegment> OneByOne(int steps) {
  std::vector<GraphSegment> segments;
  for (int i = 0; i < steps; ++i) segments.push_back({i, i + 1});
  return segments;
}

// `node_of(i)`: the node of step i.
template <typename NodeOf>
std::vector<std::string> Names(absl::string_view what, const std::vector<GraphSegment>& segments,
                               const ResolvedGraph& graph, NodeOf node_of) {
  std::vector<std::string> names;
  for (const GraphSegment& segment : segments) {
    const std::string& first = graph.nodes[node_of(segment.begin)].name;
    const std::string& last = graph.nodes[node_of(segment.end - 1)].name;
    const bool one = segment.end - segment.begin == 1;
    names.push_back(one ? absl::StrCat(what, " ", first)
                        : absl::StrCat(what, " ", first, "..", last));
  }
  return names;
}

std::vector<uint64_t> FirstRead(const Layout& layout, const SliceUse& use) {
  std::vector<uint64_t> first_read(use.read_by_node.size(), 0);
  std::vector<bool> read(layout.slices.size(), false);
  for (size_t node = 0; node < first_read.size(); ++node) {
    for (SliceId slice : use.read_by_node[node]) {
      if (read[slice.value]) continue;
      read[slice.value] = true;
      first_read[node] += layout.slices[slice.value].elements * sizeof(float);
    }
  }
  return first_read;
}

std::vector<uint64_t> Complete(const std::vector<BackwardStep>& steps, const Layout& layout,
                               const SliceUse& use) {
  std::vector<uint64_t> complete(steps.size(), 0);
  std::vector<int> left = use.nodes_of_slice;
  for (size_t i = 0; i < steps.size(); ++i) {
    for (SliceId slice : use.pushed_by_node[steps[i].node]) {
      if (--left[slice.value] > 0) continue;
      complete[i] += layout.slices[slice.value].elements * sizeof(float);
    }
  }
  return complete;
}

}  // namespace

std::vector<GraphSegment> CutBeforeReads(absl::Span<const uint64_t> first_read) {
  const uint64_t enough = Enough(first_read);
  std::vector<GraphSegment> segments;
  int begin = 0;
  uint64_t bytes = 0;
  const int steps = static_cast<int>(first_read.size());
  for (int i = 0; i < steps; ++i) {
    if (first_read[i] > 0 && bytes >= enough) {
      segments.push_back({begin, i});
      begin = i;
      bytes = 0;
    }
    bytes += first_read[i];
  }
  if (begin < steps) segments.push_back({begin, steps});
  return segments;
}

std::vector<GraphSegment> CutBehindGradients(absl::Span<const uint64_t> complete) {
  const uint64_t enough = Enough(complete);
  std::vector<GraphSegment> segments;
  int begin = 0;
  uint64_t bytes = 0;
  const int steps = static_cast<int>(complete.size());
  for (int i = 0; i < steps; ++i) {
    bytes += complete[i];
    if (bytes < enough && i + 1 < steps) continue;
    segments.push_back({begin, i + 1});
    begin = i + 1;
    bytes = 0;
  }
  return segments;
}

GraphSegments MakeGraphSegments(const ResolvedGraph& graph, const Layout& layout,
                                const SliceUse& use, bool captured) {
  const std::vector<BackwardStep> steps =
      DeriveBackward(Differentiable(graph), static_cast<int>(graph.values.size()));
  GraphSegments made;
  made.captured = captured;
  if (captured) {
    made.forward = CutBeforeReads(FirstRead(layout, use));
    made.backward = CutBehindGradients(Complete(steps, layout, use));
  } else {
    made.forward = OneByOne(static_cast<int>(graph.nodes.size()));
    made.backward = OneByOne(static_cast<int>(steps.size()));
  }
  made.forward_names = Names("forward", made.forward, graph, [](int node) { return node; });
  made.backward_names =
      Names("backward", made.backward, graph, [&](int step) { return steps[step].node; });
  return made;
}

}  // namespace starling
