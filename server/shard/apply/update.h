// One optimizer update of one slice, in one pass over memory; and sums of contributions.
//
// All paths are equal in every bit: each element is a fixed sequence of multiply, add, subtract,
// divide and square root in fp32, none of them fused or approximated, and elements do not meet.
//   g = gradient * scale                        (+ weight_decay * w: sgd, momentum, adam)
//   sgd        w -= rate * g
//   momentum   v = momentum * v + g; w -= rate * v
//   adam       m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * (g * g);
//              w -= (rate / (1 - beta1^t) * m) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//              (Kingma and Ba 2015)
//   adamw      the same, with w scaled by (1 - rate * weight_decay) first (Loshchilov and Hutter
//   2019) statistic  w = (1 - momentum) * w + momentum * g
// What depends on the step but not on the element is computed once, in double, and rounded to fp32.
#ifndef STARLING_SERVER_SHARD_APPLY_UPDATE_H_
#define STARLING_SERVER_SHARD_APPLY_UPDATE_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/placement/layout.h"
#include "common/protocol/types.h"
#include "proto/job.pb.h"
#include "server/shard/apply/instruction_set.h"
#include "server/shard/apply/payload.h"

namespace starling {

struct UpdateRule {
  enum Kind { kSgd, kMomentum, kAdam, kAdamW, kStatistic } kind = kSgd;
  double momentum = 0;  // momentum, statistic
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;

  // fp32 values per element besides the value itself: 0, 1 or 2.
  int slots() const { return kind == kMomentum ? 1 : kind == kAdam || kind == kAdamW ? 2 : 0; }
};

// The rule for one of the job's slices, which is not frozen. kInvalidArgument names a field of the
// optimizer that is out of range: momentum and betas in [0, 1), epsilon > 0, weight_decay >= 0.
absl::StatusOr<UpdateRule> MakeUpdateRule(const Optimizer& optimizer, const Slice& slice);

// Where a slice's fp32 elements lie. `in` and `out` are equal (SSP, async) or do not overlap (BSP,
// the two versions); slots are updated in place, those that the rule does not have are nullptr.
struct SliceMemory {
  const float* in = nullptr;
  float* out = nullptr;
  float* slot0 = nullptr;  // v of momentum, m of adam
  float* slot1 = nullptr;  // v of adam
  size_t elements = 0;
};

// `gradient` has exactly `memory.elements` elements. Thread-safe for different slices.
void ApplyUpdate(const UpdateRule& rule, const UpdateScalars& scalars, Payload gradient,
                 const SliceMemory& memory, InstructionSet set = BestInstructionSet());

// into[i] += from[i], over the elements of `from`.
void AddPayload(Payload from, float* into, InstructionSet set = BestInstructionSet());

// to[i] = from[i].
void CopyPayload(Payload from, float* to);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_UPDATE_H_
