// Plans one arena for everything that a micro-batch needs: activations, gradients, what forward
// saves for backward, scratch. Planned ahead, so that a step allocates nothing.
//
// Activation checkpointing (Chen et al. 2016): a node may be *dropped*. What its forward wrote then
// lives only until forward's last read; backward runs that forward once more, right before the
// first step that needs it. common/graph/recompute.h chooses which nodes to drop.
//
// Offsets come from liveness: two blocks may overlap only if they are never live at the same time
// (greedy by size, Pisarchyk and Lee 2020). An operator that can work in place does so if its input
// is not needed again. Pure and deterministic: the same request gives the same plan.
#ifndef STARLING_COMMON_GRAPH_MEMORY_PLAN_H_
#define STARLING_COMMON_GRAPH_MEMORY_PLAN_H_

#include <cstddef>
#include <vector>

#include "common/graph/backward.h"

namespace starling {

inline constexpr size_t kBlockAlignment = 64;

// What the planner must know about a node's kernel.
struct PlanNode {
  std::vector<int> inputs;         // values
  int output = 0;                  // value
  size_t saved_bytes = 0;          // live from its forward to its backward
  size_t workspace_bytes = 0;      // scratch, in its forward and again in its backward
  bool forward_in_place = false;   // output may be the buffer of inputs[0]
  bool backward_in_place = false;  // the gradient of inputs[0] may be the buffer of the output's
  std::vector<bool> backward_reads_input;
  bool backward_reads_output = false;
};

struct PlanRequest {
  std::vector<size_t> value_bytes;     // of each value and of its gradient
  std::vector<PlanNode> nodes;         // execution order
  std::vector<BackwardStep> backward;  // empty: forward only
  std::vector<int> host_reads;         // values that the host reads between forward and backward
  std::vector<bool> dropped;           // by node; empty: none
};

// A dropped node's `saved` is kept if it is at most 1/kSavedShare of the output's size and nothing
// else needs the node's second forward.
inline constexpr size_t kSavedShare = 4;

// Live at times [begin, end]. Time 0 is the copy of the inputs, 1 + i the forward of node i, then
// one for the host's reads, then one for each second forward and backward step, in their order.
struct Block {
  size_t offset = 0;
  size_t bytes = 0;  // 0: no such block
  int begin = 0;
  int end = 0;
  friend bool operator==(const Block&, const Block&) = default;
};

struct MemoryPlan {
  std::vector<Block> values;              // by value
  std::vector<Block> gradients;           // by value
  std::vector<Block> saved;               // by node
  std::vector<Block> forward_workspace;   // by node
  std::vector<Block> backward_workspace;  // by backward step
  std::vector<std::vector<Block>> aside;  // by backward step and input: gradients to be added
  // By backward step: the nodes whose forward runs again before it, in this order, each once.
  std::vector<std::vector<int>> again;
  // Where backward steps and second forwards find values and saved data: in the blocks above or,
  // for a node that runs again, where its second forward writes.
  std::vector<Block> backward_values;   // by value
  std::vector<Block> backward_saved;    // by node
  std::vector<Block> second_workspace;  // by node, for its second forward
  size_t peak_bytes = 0;                // the arena's size

  friend bool operator==(const MemoryPlan&, const MemoryPlan&) = default;
};

// Values that work in place share offset and bytes with their source, but have their own `begin`
// and `end`.
MemoryPlan PlanMemory(const PlanRequest& request);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_MEMORY_PLAN_H_
