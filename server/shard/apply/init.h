// First values of parameters, made on the shard: functions of (job's seed, parameter's name,
// element index) alone, so that neither slicing nor placement changes them, and nobody uploads
// noise.
//
// Philox4x64-10 (Salmon et al. 2011, Random123) with the key (seed, XXH3-64 of the name) and the
// counter (element, 0, 0, 0).
#ifndef STARLING_SERVER_SHARD_APPLY_INIT_H_
#define STARLING_SERVER_SHARD_APPLY_INIT_H_

#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/placement/layout.h"
#include "proto/model.pb.h"

namespace starling {

// out[i] = first value of element begin + i of the parameter, for i in [0, length). Computed in
// double, rounded once. An initializer without kind is CONSTANT 0. Thread-safe.
void InitParameter(uint64_t seed, absl::string_view name, const Initializer& init, uint64_t begin,
                   uint64_t length, float* out);

// First values of slices, also where they come from the graph's file. One thread at a time.
class FirstValues {
 public:
  // `graph` outlives this.
  FirstValues(uint64_t seed, const Graph& graph) : seed_(seed), graph_(graph) {}
  ~FirstValues();
  FirstValues(const FirstValues&) = delete;
  FirstValues& operator=(const FirstValues&) = delete;

  // `out` has slice.elements elements. kFailedPrecondition: the file is not there, cannot be read,
  // or does not hold the bytes that the job was accepted with; says which parameter.
  absl::Status Make(const Slice& slice, float* out);

 private:
  absl::Status Read(uint32_t param, uint64_t begin, uint64_t length, float* out);
  absl::Status Open();
  absl::Status Verify(const Parameter& parameter, uint64_t elements);

  const uint64_t seed_;
  const Graph& graph_;
  int file_ = -1;
  std::set<uint32_t> verified_;  // parameters whose bytes in the file were compared
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_INIT_H_
