// Which samples make up which micro-batch (docs/protocol.md, section 1). Pure values and
// arithmetic, shared by coordinator, shard and worker.
#ifndef STARLING_COMMON_DATA_PLAN_BATCH_PLAN_H_
#define STARLING_COMMON_DATA_PLAN_BATCH_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace starling {

// Positions [begin, end) in an epoch's order of the samples.
struct PositionRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend constexpr bool operator==(const PositionRange&, const PositionRange&) = default;
};

// Cuts one pass over `samples` samples into steps of `global` samples (B), and these into
// `micro_batches` (M) of b = B/M. Micro-batch id s*M + m is micro-batch m of step s; since B = M*b,
// id i covers the positions [i*b, min((i+1)*b, n)), which may be short or empty in the last step.
// Immutable; thread-safe.
class BatchPlan {
 public:
  // kInvalidArgument unless 1 <= samples <= limits::kSamplesMax, 1 <= global <=
  // limits::kGlobalBatchMax, and micro_batches is a power of two, at most
  // limits::kMicroBatchesMax, that divides global.
  static absl::StatusOr<BatchPlan> Make(int64_t samples, uint32_t global, uint32_t micro_batches);

  int64_t samples() const { return samples_; }
  uint32_t global() const { return global_; }
  uint32_t micro_batches() const { return micro_batches_; }
  uint32_t micro_batch_samples() const {
    return global_ / micro_batches_;
  }  // b; fewer in the last step

  uint64_t steps() const { return (samples_ + global_ - 1) / global_; }  // S, the items of an epoch
  uint64_t ids() const { return steps() * micro_batches_; }              // valid ids are [0, ids())

  // The positions of the micro-batches [first, first + count); ids beyond ids() are empty.
  PositionRange Positions(uint64_t first, uint64_t count = 1) const;

  friend bool operator==(const BatchPlan&, const BatchPlan&) = default;

 private:
  BatchPlan(int64_t samples, uint32_t global, uint32_t micro_batches)
      : samples_(samples), global_(global), micro_batches_(micro_batches) {}

  int64_t samples_;
  uint32_t global_;
  uint32_t micro_batches_;
};

}  // namespace starling

#endif  // STARLING_COMMON_DATA_PLAN_BATCH_PLAN_H_
