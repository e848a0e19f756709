// One optimizer update of one slice; and sums of contributions.
//
// All paths are equal in every bit: each element is a fixed sequence of multiply, add, subtract,
// divide and square root in fp32, none of them fused or approximated. Norms are summed over
// elements in fp64 in fixed lanes (update_kernels.h).
//   g = gradient * scale                 (+ decay * w: all but adamw and lamb)
//   sgd        w -= rate * g
//   momentum   v = momentum * v + g; w -= rate * v
//   nesterov   v = momentum * v + g; w -= rate * (g + momentum * v)
//              (Nesterov 1983, in the form of Sutskever et al. 2013 with the look-ahead as
//              parameter)
//   adagrad    h = h + g * g; w -= rate * g / (sqrt(h) + epsilon)        (Duchi et al. 2011)
//   adam       m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * (g * g);
//              w -= (rate / (1 - beta1^t) * m) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//              (Kingma and Ba 2015)
//   adamw      the same, with w scaled by (1 - rate * decay) first     (Loshchilov and Hutter 2019)
//   lamb       r = (m / (1 - beta1^t)) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon) + decay * w;
//              w -= rate * |w| / |r| * r, norms over a block; 1 for |w| / |r| where one is 0
//              (You et al. 2020, Algorithm 2 with phi(x) = x)
//   statistic  w = (1 - momentum) * w + momentum * g
// What depends on the step but not on the element is computed once, in double, and rounded to fp32.
//
// A block is the part of one parameter that lies in the slice: all of it, unless the parameter has
// more elements than fit in one slice. Clipping scales a block's g by clip_norm / |g| if |g| is
// larger.
#ifndef STARLING_SERVER_SHARD_APPLY_UPDATE_H_
#define STARLING_SERVER_SHARD_APPLY_UPDATE_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "common/placement/layout.h"
#include "common/protocol/types.h"
#include "proto/job.pb.h"
#include "server/shard/apply/instruction_set.h"
#include "server/shard/apply/payload.h"

namespace starling {

struct UpdateRule {
  enum Kind { kSgd, kMomentum, kNesterov, kAdagrad, kAdam, kAdamW, kLamb, kStatistic } kind = kSgd;
  double momentum = 0;  // momentum, nesterov, statistic
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  float first_slot0 = 0;         // adagrad: h before the first update; others: 0
  bool trust_ratio = false;      // lamb: false takes 1 for |w| / |r|
  double clip_norm = 0;          // per block; 0: none
  std::vector<uint32_t> blocks;  // elements of each, in order; their sum is the slice's

  // fp32 values per element in addition to the value itself: 0, 1 or 2.
  int slots() const;
};

// The rule for one of the job's slices that is not frozen. kInvalidArgument names a field of the
// optimizer or of clip that is out of range: momentum and betas in [0, 1), epsilon > 0, decay >= 0.
absl::StatusOr<UpdateRule> MakeUpdateRule(const JobSpec& spec, const Slice& slice);

// Where a slice's fp32 elements are. `in` and `out` are equal (SSP, async) or do not overlap (BSP,
// the two versions). Slots are updated in place; slots that the rule lacks are nullptr. Before the
// first update slot0 holds first_slot0, slot1 zeros.
struct SliceMemory {
  const float* in = nullptr;
  float* out = nullptr;
  float* slot0 = nullptr;  // v of momentum, h of adagrad, m of adam
  float* slot1 = nullptr;  // v of adam
  size_t elements = 0;
};

// `gradient` has exactly `memory.elements` elements. If it `looks`, which makes an update up to 1.7
// times as long, it returns the first element of which the new value, or what a slot has for it, is
// NaN or infinite; else, and if there is none, -1. Thread-safe for different slices.
int64_t ApplyUpdate(const UpdateRule& rule, const UpdateScalars& scalars, Payload gradient,
                    const SliceMemory& memory, InstructionSet set = BestInstructionSet(),
                    bool looks = false);

// into[i] += from[i], over the elements of `from`. Returns the first element whose sum is NaN or
// infinite; -1: none.
int64_t AddPayload(Payload from, float* into, InstructionSet set = BestInstructionSet());

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_UPDATE_H_
