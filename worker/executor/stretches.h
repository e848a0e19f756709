// Which steps of a micro-batch are ordered together. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_STRETCHES_H_
#define STARLING_WORKER_EXECUTOR_STRETCHES_H_

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
struct Stretch {
  int begin = 0;
  int end = 0;
  friend bool operator==(const Stretch&, const Stretch&) = default;
};

// Where steps are captured and launched together, copies cannot begin or be waited for inside a
// stretch. A cut costs the device the begin of one more launch, some microseconds, and lets the
// copies before it run beside what comes behind it: so there is one for each kStretchBytesMin,
// which take longer than that over any bus, and, since a longer wait for the last 1 / kStretchesMax
// of all bytes is not seen, no more of them than about kStretchesMax.
inline constexpr uint64_t kStretchBytesMin = 1 << 20;
inline constexpr uint64_t kStretchesMax = 16;

// Forward: `first_read[i]` bytes of parameters are read by step i, and by none before it. A stretch
// waits for all that it reads, and so ends in front of a step that reads more, when it reads enough
// itself.
std::vector<Stretch> CutBeforeReads(absl::Span<const uint64_t> first_read);
// Backward: `complete[i]` bytes of gradients are complete behind step i. They leave at the
// stretch's end, which comes as soon as they are enough.
std::vector<Stretch> CutBehindGradients(absl::Span<const uint64_t> complete);

// All that lanes order, cut.
struct Stretches {
  bool captured = false;  // whether it is captured; else each step is a stretch
  std::vector<Stretch> forward;
  std::vector<Stretch> backward;  // of DeriveBackward's steps
  // Of their spans: "forward conv1", "backward fc..pool".
  std::vector<std::string> forward_names;
  std::vector<std::string> backward_names;
};

Stretches MakeStretches(const ResolvedGraph& graph, const Layout& layout, const SliceUse& use,
                        bool captured);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_STRETCHES_H_
