// The arrow from a push in a worker's trace to its apply in a shard's.
#ifndef STARLING_COMMON_TRACE_FLOW_H_
#define STARLING_COMMON_TRACE_FLOW_H_

#include <cstdint>

#include "common/protocol/types.h"

namespace starling {

// The same for all contributions to one update of a slice: those of one step of `micro_batches`
// micro-batches. Never 0. (SplitMix64's finalizer, Steele et al. 2014, over the fields.)
inline uint64_t FlowOf(const RunId& run, SliceId slice, const WorkRange& work,
                       uint32_t micro_batches) {
  uint64_t hash = 0;
  for (const uint64_t field :
       {run.job.value, uint64_t{run.era}, uint64_t{slice.value}, uint64_t{work.epoch},
        micro_batches == 0 ? work.first : work.first / micro_batches}) {
    hash += field + 0x9E3779B97F4A7C15;
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9;
    hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EB;
    hash ^= hash >> 31;
  }
  return hash == 0 ? 1 : hash;
}

}  // namespace starling

#endif  // STARLING_COMMON_TRACE_FLOW_H_
