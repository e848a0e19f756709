// A job's `recompute`, for tests.
#ifndef STARLING_COMMON_GRAPH_TESTING_RECOMPUTE_POLICIES_H_
#define STARLING_COMMON_GRAPH_TESTING_RECOMPUTE_POLICIES_H_

#include <cstdint>

#include "proto/job.pb.h"

namespace starling {

inline Recompute EveryBlocks(uint32_t blocks) {
  Recompute policy;
  policy.set_every_blocks(blocks);
  return policy;
}

inline Recompute Within(uint64_t activation_bytes) {
  Recompute policy;
  policy.set_activation_bytes(activation_bytes);
  return policy;
}

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_TESTING_RECOMPUTE_POLICIES_H_
