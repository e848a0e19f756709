// How a job's parameters are cut into slices, slices grouped into partitions, and partitions placed
// on shards (docs/protocol.md, section 1); and which part of a BSP step each member computes
// (section 5).
//
// All functions are pure: every daemon computes the same from the same graph, and compares digests.
#ifndef STARLING_COMMON_PLACEMENT_LAYOUT_H_
#define STARLING_COMMON_PLACEMENT_LAYOUT_H_

#include <algorithm>
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

// Elements [flat_begin, flat_begin + elements) of the flat buffer. All have the same kind and group
// and, for statistics, the same momentum.
struct Slice {
  SliceId id;  // its index in Layout::slices
  PartitionId partition;
  ParameterKind kind = TRAINABLE;
  double statistic_momentum = 0;  // STATISTIC only
  GroupIndex group = kNoGroup;    // TRAINABLE only
  uint64_t flat_begin = 0;
  uint32_t elements = 0;          // at most limits::kSliceElementsMax
  std::vector<Segment> segments;  // in order, without gaps
  friend bool operator==(const Slice&, const Slice&) = default;
};

// Its partition keeps the loss scale of an fp16 job, and its VALUE frames carry it. The slice is
// frozen only if nothing is trained: see the order of slices.
inline constexpr SliceId kLossScaleSlice(0);

// Where a parameter lies: contiguous in the flat buffer, in slices [first_slice, last_slice].
struct ParameterPlace {
  uint64_t flat_begin = 0;
  uint64_t elements = 0;
  SliceId first_slice;
  SliceId last_slice;
  friend bool operator==(const ParameterPlace&, const ParameterPlace&) = default;
};

struct Layout {
  // Trainable, then statistic, then frozen; within each by the first parameter in forward order.
  std::vector<Slice> slices;
  std::vector<ParameterPlace> parameters;        // parallel to graph.parameters()
  std::vector<std::vector<SliceId>> partitions;  // slices of each partition, ascending
  uint64_t elements = 0;                         // in the flat buffer
  uint64_t digest = 0;  // XXH3-64 of all of the above and the parameters' names
};

// The layout of `graph`; only the groups of `optimizer` matter. kInvalidArgument names the
// parameter: a shape with a dimension below 1 or too many elements (common/protocol/limits.h), a
// kind that is unset or not built; or a group that matches nothing. A graph without parameters is
// an error.
absl::StatusOr<Layout> MakeLayout(const Graph& graph,
                                  const Optimizer& optimizer = Optimizer::default_instance());

// For a job with a resolved model.
inline absl::StatusOr<Layout> MakeLayout(const JobSpec& spec) {
  return MakeLayout(spec.model(), spec.optimizer());
}

struct ShardLoad {
  ShardId id;
  uint64_t elements = 0;  // held for other jobs, including ended ones
  uint64_t room_bytes = std::numeric_limits<uint64_t>::max();
};

// The shard of each partition of a job, given the partitions' elements and planned bytes. The
// largest partition is first; each goes to the shard that has least of this job, then to the one
// that holds least in total, then to the first in `shards`. A shard gets no more than it has room
// for; empty: impossible. `shards` is not empty; with more shards than partitions some get none.
std::vector<ShardId> AssignPartitions(absl::Span<const uint64_t> elements,
                                      absl::Span<const uint64_t> bytes,
                                      absl::Span<const ShardLoad> shards);

// An aligned range of a step's micro-batches, counted from the step's first one.
struct Subtree {
  uint32_t first = 0;
  uint32_t count = 0;
  friend bool operator==(const Subtree&, const Subtree&) = default;
};

using Subtrees = absl::InlinedVector<Subtree, 8>;

// The part of job step `step` that member `member` (an index) of a roster of `members` computes:
// aligned subtrees, ascending. The members' subtrees are disjoint and together cover
// [0, micro_batches) exactly once. Loads differ by at most one, and the larger ones rotate with the
// step. `micro_batches` is a power of two.
Subtrees AssignSubtrees(uint64_t step, uint64_t member, uint64_t members, uint32_t micro_batches);

// How many members of a roster of `members` share a step of a job whose file asks for `backup`
// backup workers: the first ones. The rest repeat. At least one of them shares.
constexpr uint64_t SharingMembers(uint64_t members, uint64_t backup) {
  return members > backup ? members - backup : std::min<uint64_t>(members, 1);
}

}  // namespace starling

#endif  // STARLING_COMMON_PLACEMENT_LAYOUT_H_
