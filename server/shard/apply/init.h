// First values of parameters, made on the shard: functions of (job's seed, parameter's name,
// element index) alone, so that neither slicing nor placement changes them, and nobody uploads
// noise.
//
// Philox4x64-10 (Salmon et al. 2011, Random123) with the key (seed, XXH3-64 of the name) and the
// counter (element, 0, 0, 0).
#ifndef STARLING_SERVER_SHARD_APPLY_INIT_H_
#define STARLING_SERVER_SHARD_APPLY_INIT_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/placement/layout.h"
#include "proto/model.pb.h"

namespace starling {

// out[i] = first value of element begin + i of the parameter, for i in [0, length). Computed in
// double, rounded once. An initializer without kind is CONSTANT 0. Thread-safe.
void InitParameter(uint64_t seed, absl::string_view name, const Initializer& init, uint64_t begin,
                   uint64_t length, float* out);

// The same for a slice of a layout of `graph`; `out` has slice.elements elements.
void InitSlice(uint64_t seed, const Graph& graph, const Slice& slice, float* out);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_INIT_H_
