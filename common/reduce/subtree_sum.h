// The bookkeeping of a sum along a complete binary tree of 2^k leaves (docs/protocol.md, section
// 2): node = left + right, so the bits of the sum do not depend on the order in which parts arrive
// (a+b and b+a have equal bits). The shard uses it for unsealed contributions of a BSP step, the
// worker for its micro-batches.
//
// Pure: knows buffers by their ids only; the owner of the bytes carries out the merges, in order.
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
    bool duplicate = false;  // the range is already held: the new buffer was not taken
    bool complete = false;   // `root` is the sum of all leaves
    BufferId root;
    // Held buffers inside the new range: now free. Their sums are in the new buffer.
    absl::InlinedVector<BufferId, 2> replaced;
    absl::InlinedVector<Merge, 4> merges;
  };

  // `leaves` is a power of two.
  explicit SubtreeSum(uint32_t leaves);

  // Takes the sum of leaves [first, first + count). CHECKs that the range is aligned and inside the
  // tree: callers check ranges from outside.
  Outcome Insert(uint32_t first, uint32_t count, BufferId buffer);

  // Whether Insert would return `duplicate`.
  bool Holds(uint32_t first, uint32_t count) const;

  // Returns the held buffers, ascending by range, and forgets them.
  absl::InlinedVector<BufferId, 4> Clear();

  uint32_t leaves() const { return leaves_; }
  bool empty() const { return held_.empty(); }

 private:
  struct Node {
    uint32_t first;  // leaf
    uint32_t count;
    BufferId buffer;
  };
  // Ascending, disjoint, without siblings. A vector, because it keeps its memory between sums.
  using Held = std::vector<Node>;

  Held::iterator AtOrAfter(uint32_t first);
  Held::iterator SiblingOf(Held::iterator node);

  uint32_t leaves_;
  Held held_;
  BufferId running_;  // the sum in order of arrival: only while kReductionOrder is masked
};

}  // namespace starling

#endif  // STARLING_COMMON_REDUCE_SUBTREE_SUM_H_
