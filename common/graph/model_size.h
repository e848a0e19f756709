// How many nodes a model may have.
#ifndef STARLING_COMMON_GRAPH_MODEL_SIZE_H_
#define STARLING_COMMON_GRAPH_MODEL_SIZE_H_

namespace starling {

// GPT-2 with 96 blocks has some 1,300. The coordinator builds, checks and lays out a submitted
// model on the loop on which it hears daemons, at some 0.1 ms a node, and a shard that dies during
// a stall of more than 0.5 s is found as much later (docs/failure_model.md).
inline constexpr int kModelNodesMax = 4'000;

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_MODEL_SIZE_H_
