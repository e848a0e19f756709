// The bookkeeping of a sum along a complete binary tree of 2^k leaves (docs/protocol.md, section
// 2): node = left + right, so the bits of the sum do not depend on the order in which parts arrive
// (a+b and b+a have equal bits). Used by the shard for unsealed contributions of a BSP step, and by
// the worker for its micro-batches.
//
// Pure: knows buffers by their ids only; whoever owns the bytes carries out the merges, in order.
// Not thread-safe.
#ifndef STARLING_COMMON_REDUCE_SUBTREE_SUM_H_
#define STARLING_COMMON_REDUCE_SUBTREE_SUM_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/protocol/ids.h"

namespace starling {

class SubtreeSum {
 public:
  // into[i] += from[i] for every element; `from` is free afterwards.
  struct Merge {
    BufferId into;
    BufferId from;
    friend bool operator==(const Merge&, const Merge&) = default;
  };

  struct Outcome {
    bool duplicate = false;  // the range is held already: the new buffer was not taken
    bool complete = false;   // `root` is the sum of all leaves
    BufferId root;
    // Held before, contained in the new range: free. Their sums are in the new buffer.
    absl::InlinedVector<BufferId, 2> replaced;
    absl::InlinedVector<Merge, 4> merges;
  };

  // `leaves` is a power of two.
  explicit SubtreeSum(uint32_t leaves);

  // Takes the sum of leaves [first, first + count). An aligned range inside the tree: CHECKed,
  // because whoever receives it from outside has checked it.
  Outcome Insert(uint32_t first, uint32_t count, BufferId buffer);

  // Whether Insert would say duplicate.
  bool Holds(uint32_t first, uint32_t count) const;

  // The buffers held, ascending by range; forgets them.
  absl::InlinedVector<BufferId, 4> Clear();

  uint32_t leaves() const { return leaves_; }
  bool empty() const { return held_.empty(); }

 private:
  struct Node {
    uint32_t first;  // leaf
    uint32_t count;
    BufferId buffer;
  };
  // Ascending; disjoint, no two siblings. A vector, because it keeps its memory from sum to sum.
  using Held = std::vector<Node>;

  Held::iterator AtOrAfter(uint32_t first);
  Held::iterator SiblingOf(Held::iterator node);

  uint32_t leaves_;
  Held held_;
  BufferId running_;  // of all that came, in that order: only while kReductionOrder is masked
};

}  // namespace starling

#endif  // STARLING_COMMON_REDUCE_SUBTREE_SUM_H_
