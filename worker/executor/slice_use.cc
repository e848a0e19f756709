#include "worker/executor/slice_use.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace starling {

SliceUse FindSliceUse(const ResolvedGraph& graph, const Layout& layout) {
  SliceUse use;
  use.nodes_of_slice.assign(layout.slices.size(), 0);
  for (const ResolvedNode& node : graph.nodes) {
    std::vector<SliceId> slices, pushed;
    for (int p : node.parameters) {
      const ParameterPlace& place = layout.parameters[p];
      for (SliceId s = place.first_slice; s <= place.last_slice; ++s.value) slices.push_back(s);
    }
    std::sort(slices.begin(), slices.end());
    slices.erase(std::unique(slices.begin(), slices.end()), slices.end());
    std::copy_if(slices.begin(), slices.end(), std::back_inserter(pushed),
                 [&](SliceId s) { return layout.slices[s.value].kind != FROZEN; });
    for (SliceId s : pushed) ++use.nodes_of_slice[s.value];
    use.read_by_node.push_back(std::move(slices));
    use.pushed_by_node.push_back(std::move(pushed));
  }
  return use;
}

}  // namespace starling
