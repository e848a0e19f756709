// How a job's parameters are cut into slices, slices put into partitions, and partitions put on
// shards (docs/protocol.md, section 1); and which part of a BSP step each member computes (section
// 5).
//
// All functions are pure: every daemon computes the same from the same graph, and compares digests.
#ifndef STARLING_COMMON_PLACEMENT_LAYOUT_H_
#define STARLING_COMMON_PLACEMENT_LAYOUT_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/placement/parameter_groups.h"
#include "common/protocol/ids.h"
#include "common/protocol/types.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"

namespace starling {

// Elements [param_begin, param_begin + length) of graph.parameters(param) are the elements
// [slice_begin, slice_begin + length) of the slice.
struct Segment {
  uint32_t param = 0;
  uint64_t param_begin = 0;
  uint32_t slice_begin = 0;
  uint32_t length = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

// Elements [flat_begin, flat_begin + elements) of the flat buffer; all of one kind and group and,
// for statistics, of one momentum.
struct Slice {
  SliceId id;  // its index in Layout::slices
  PartitionId partition;
  ParameterKind kind = TRAINABLE;
  double statistic_momentum = 0;  // STATISTIC only
  GroupIndex group = kNoGroup;    // TRAINABLE only
  uint64_t flat_begin = 0;
  uint32_t elements = 0;          // at most limits::kSliceElementsMax
  std::vector<Segment> segments;  // in order, without holes
  friend bool operator==(const Slice&, const Slice&) = default;
};

// Its partition keeps the loss scale of a job in fp16, and its value says it. Frozen only where
// nothing is trained: see the order of slices.
inline constexpr SliceId kLossScaleSlice(0);

// Where a parameter lies: contiguous in the flat buffer, over slices [first_slice, last_slice].
struct ParameterPlace {
  uint64_t flat_begin = 0;
  uint64_t elements = 0;
  SliceId first_slice;
  SliceId last_slice;
  friend bool operator==(const ParameterPlace&, const ParameterPlace&) = default;
};

struct Layout {
  // Trainable, then statistic, then frozen; in each by the first parameter in forward order.
  std::vector<Slice> slices;
  std::vector<ParameterPlace> parameters;        // parallel to graph.parameters()
  std::vector<std::vector<SliceId>> partitions;  // ascending slices of each
  uint64_t elements = 0;                         // of the flat buffer
  uint64_t digest = 0;  // XXH3-64 of all of the above and the parameters' names

  uint32_t PartitionElements(PartitionId partition) const;
};

// The layout of `graph` trained by `optimizer`, of which its groups alone matter.
// kInvalidArgument names the parameter: a shape with a dimension below 1 or too many elements
// (common/protocol/limits.h), a kind that is unset or not built; or a group that matches nothing. A
// graph without parameters is an error.
absl::StatusOr<Layout> MakeLayout(const Graph& graph,
                                  const Optimizer& optimizer = Optimizer::default_instance());

// Of a job whose model is resolved.
inline absl::StatusOr<Layout> MakeLayout(const JobSpec& spec) {
  return MakeLayout(spec.model(), spec.optimizer());
}

struct ShardLoad {
  ShardId id;
  uint64_t elements = 0;  // that it holds of other jobs, those that are over, too
  uint64_t room_bytes = std::numeric_limits<uint64_t>::max();
};

// The shard of each partition of a job, given its elements and the bytes that are planned for it:
// the largest partition first, each to the shard that has least of this job; of such shards to the
// one that holds least in all, ties to the first in `shards`. A shard gets no more than it has room
// for; empty where that is not possible. `shards` is not empty; with more shards than partitions
// some get none.
std::vector<ShardId> AssignPartitions(absl::Span<const uint64_t> elements,
                                      absl::Span<const uint64_t> bytes,
                                      absl::Span<const ShardLoad> shards);

// An aligned range of a step's micro-batches, counted from the step's first.
struct Subtree {
  uint32_t first = 0;
  uint32_t count = 0;
  friend bool operator==(const Subtree&, const Subtree&) = default;
};

using Subtrees = absl::InlinedVector<Subtree, 8>;

// What member `member` (an index) of a roster of `members` computes of job step `step`: aligned
// subtrees, ascending. All members' are disjoint and cover [0, micro_batches) exactly once.
// Members' loads differ by one at most, and who carries more rotates with the step. `micro_batches`
// is a power of two.
Subtrees AssignSubtrees(uint64_t step, uint64_t member, uint64_t members, uint32_t micro_batches);

}  // namespace starling

#endif  // STARLING_COMMON_PLACEMENT_LAYOUT_H_
