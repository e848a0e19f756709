// The state of a partition at a step: what a checkpoint has of it beside its values and the policy.
#ifndef STARLING_SERVER_SHARD_CORE_CUT_STATE_H_
#define STARLING_SERVER_SHARD_CORE_CUT_STATE_H_

#include <cstdint>
#include <optional>

#include "common/schedule/loss_scale.h"

namespace starling {

struct CutState {
  uint64_t step = 0;     // of the job: all below it is applied, nothing else
  uint64_t skipped = 0;  // of these steps
  // In the partition that keeps it; in others zeros.
  LossScale::State loss_scale = {0, 0};
  // The epoch of the copy for evaluation; unset: there is none, or it is not needed any more.
  std::optional<uint32_t> copy = std::nullopt;
  friend bool operator==(const CutState&, const CutState&) = default;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_CUT_STATE_H_
