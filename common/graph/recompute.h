// Activation checkpointing: which activations are not kept for backward but recomputed there (Chen
// et al. 2016). It trades time for memory and changes no bit of a gradient.
//
// A graph is cut into blocks where a single value crosses, such that each block contains a matrix
// product: a residual block of a ResNet, the attention or the MLP of a transformer layer. Dropping
// a run of blocks keeps only the value that leaves the run; light dropping also keeps the outputs
// of matrix products, and drops what is cheap to compute from them.
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

// What the choice needs to know about a graph, besides the plan's request.
struct RecomputeOutline {
  std::vector<int> block_ends;        // last node of each block, ascending; ends with the loss
  std::vector<bool> product;          // by node: conv2d, linear, matmul, attention, embedding
  std::vector<double> forward_costs;  // by node: ForwardCost
};

RecomputeOutline OutlineRecompute(const ResolvedGraph& graph);

// Estimated cost of a sample's forward: multiply-adds for matrix products; for all else
// kMultiplyAddsPerElement per element moved. Only ratios are meaningful.
inline constexpr double kMultiplyAddsPerElement = 16;
double ForwardCost(const ResolvedGraph& graph, int node);

// The cost of the plan's second forwards as a share of the whole forward's cost.
double RecomputedShare(const RecomputeOutline& outline, const MemoryPlan& plan);

// kInvalidArgument: the policy's numbers do not fit the graph; the message says which would.
absl::Status CheckRecompute(const RecomputeOutline& outline, const Recompute& policy);

// Sets request->dropped by the policy:
// * none: nothing;
// * every_blocks n: all but the value that leaves each run of n blocks; the last run is kept, as
//   backward starts there;
// * activation_bytes: the cheapest of the choices tried whose peak fits the budget. Tries runs of
//   several lengths; for each it keeps as many runs as possible whole, then drops as many as
//   possible lightly. kInvalidArgument: none fits; the message has the lowest peak found.
absl::Status ChooseDropped(const RecomputeOutline& outline, const Recompute& policy,
                           PlanRequest* request);

// As in the job file: "none", "everyBlocks: 2", "activationBytes: 1048576".
std::string RecomputeText(const Recompute& policy);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_RECOMPUTE_H_
