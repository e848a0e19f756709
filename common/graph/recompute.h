// Activation checkpointing: which activations are not kept for backward, but computed again there
// (Chen et al. 2016). It trades time for memory and changes no bit of a gradient.
//
// A graph is cut into blocks where a single value crosses, so that each block has a matrix product
// in it: a residual block of a ResNet, the attention or the MLP of a transformer's layer. Dropping
// a run of blocks keeps the value that leaves the run and nothing inside it; light dropping keeps
// the outputs of matrix products, and drops what is cheap to compute from them.
//
// Pure and deterministic.
#ifndef STARLING_COMMON_GRAPH_RECOMPUTE_H_
#define STARLING_COMMON_GRAPH_RECOMPUTE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/graph/graph.h"
#include "common/graph/memory_plan.h"
#include "proto/job.pb.h"

namespace starling {

// What choosing must know of a graph, beside the plan's request.
struct RecomputeOutline {
  std::vector<int> block_ends;        // the last node of each block, ascending; the loss's at last
  std::vector<bool> product;          // by node: conv2d, linear, matmul, attention, embedding
  std::vector<double> forward_costs;  // by node: ForwardCost
};

RecomputeOutline OutlineRecompute(const ResolvedGraph& graph);

// How long a sample's forward takes, estimated: multiply-adds, or for all but matrix products the
// elements that it moves, each at the price of kMultiplyAddsPerElement. Only ratios mean anything.
inline constexpr double kMultiplyAddsPerElement = 16;
double ForwardCost(const ResolvedGraph& graph, int node);

// What the plan's second forwards cost, as a share of the whole forward's cost.
double RecomputedShare(const RecomputeOutline& outline, const MemoryPlan& plan);

// kInvalidArgument: the policy's numbers do not go with the graph (says which would).
absl::Status CheckRecompute(const RecomputeOutline& outline, const Recompute& policy);

// Sets request->dropped as the policy says:
// * none: nothing;
// * every_blocks n: all but what leaves each run of n blocks; the last run is kept, as backward
//   begins there;
// * activation_bytes: of the choices that are tried, the one that costs least with a peak within
//   the budget. Runs of several lengths are tried; in each try as many runs as possible are kept
//   whole, then as many as possible are dropped lightly. kInvalidArgument: none is within it;
//   says the least peak that was found.
absl::Status ChooseDropped(const RecomputeOutline& outline, const Recompute& policy,
                           PlanRequest* request);

// "none", "everyBlocks: 2", "activationBytes: 1048576": as in the job file.
std::string RecomputeText(const Recompute& policy);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_RECOMPUTE_H_
