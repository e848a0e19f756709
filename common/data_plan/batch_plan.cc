#include "common/data_plan/batch_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"

namespace starling {

absl::StatusOr<BatchPlan> BatchPlan::Make(int64_t samples, uint32_t global,
                                          uint32_t micro_batches) {
  if (samples < 1 || samples > limits::kSamplesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 1 to ", limits::kSamplesMax, " samples, got ", samples));
  }
  if (global < 1 || global > limits::kGlobalBatchMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.global: expected 1 to ", limits::kGlobalBatchMax, ", got ", global));
  }
  if (micro_batches < 1 || micro_batches > limits::kMicroBatchesMax ||
      (micro_batches & (micro_batches - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.microBatches: expected a power of two from 1 to ",
                     limits::kMicroBatchesMax, ", got ", micro_batches));
  }
  if (global % micro_batches != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch.global ", global, " is not a multiple of batch.microBatches ", micro_batches));
  }
  return BatchPlan(samples, global, micro_batches);
}

PositionRange BatchPlan::Positions(uint64_t first, uint64_t count) const {
  const uint64_t b = micro_batch_samples();
  const uint64_t begin_id = std::min(first, ids());
  const uint64_t end_id = begin_id + std::min(count, ids() - begin_id);
  const uint64_t n = static_cast<uint64_t>(samples_);
  return {.begin = static_cast<int64_t>(std::min(begin_id * b, n)),
          .end = static_cast<int64_t>(std::min(end_id * b, n))};
}

}  // namespace starling
