// Which slices a graph's nodes read, and which get a gradient from them. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_SLICE_USE_H_
#define STARLING_WORKER_EXECUTOR_SLICE_USE_H_

#include <vector>

#include "common/graph/graph.h"
#include "common/placement/layout.h"
#include "common/protocol/ids.h"

namespace starling {

// Which slices hold each node's parameters, which of them get a gradient from it, and for how many
// backward steps each slice waits: none if it is frozen.
struct SliceUse {
  std::vector<std::vector<SliceId>> read_by_node;
  std::vector<std::vector<SliceId>> pushed_by_node;
  std::vector<int> nodes_of_slice;
};

SliceUse FindSliceUse(const ResolvedGraph& graph, const Layout& layout);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_SLICE_USE_H_
