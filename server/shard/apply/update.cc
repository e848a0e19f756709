#include "server/shard/apply/update.h"

#include <algorithm>
#include <cmath>

#include "absl/container/inlined_vector.h"
#include "common/base/check.h"
#include "server/shard/apply/update_kernels.h"
#include "server/shard/apply/verify.h"

namespace starling {
namespace {

// A run's gradient fits in the second-level cache.
constexpr size_t kRunElements = 8 << 10;

using Blocks = absl::Span<const uint32_t>;

// Calls run(values, first_element, count, block, begin_in_block) over the payload's elements in
// order, in runs inside one block.
template <typename Fn>
void ForEachBlockRun(Payload payload, Blocks blocks, const Fn& run) {
  size_t block = 0;
  size_t block_begin = 0;
  ForEachRun(payload, kRunElements, [&](const UnalignedFloat* values, size_t first, size_t count) {
    while (count > 0) {
      const size_t block_end = block_begin + blocks[block];
      const size_t here = std::min(count, block_end - first);
      run(values, first, here, block, first - block_begin);
      values += here;
      first += here;
      count -= here;
      if (first < block_end) continue;
      block_begin = block_end;
      ++block;
    }
  });
}

// The factor for each block's gradient that brings its norm within clip_norm.
absl::InlinedVector<double, 8> Shrinks(const UpdateRule& rule, const UpdateScalars& scalars,
                                       Payload gradient, const UpdateKernels& kernels) {
  absl::InlinedVector<NormLanes, 8> lanes(rule.blocks.size(), NormLanes{});
  ForEachBlockRun(gradient, rule.blocks,
                  [&](const UnalignedFloat* values, size_t, size_t count, size_t block,
                      size_t begin) { kernels.add_squares(values, count, begin, lanes[block]); });
  absl::InlinedVector<double, 8> shrinks;
  for (const NormLanes& of_block : lanes) {
    const double norm = std::sqrt(Total(of_block)) * std::abs(static_cast<double>(scalars.scale));
    shrinks.push_back(norm > rule.clip_norm ? rule.clip_norm / norm : 1);
  }
  return shrinks;
}

// The moments are updated; `out` still has the old values.
void StepLamb(const UpdateRule& rule, const UpdateConstants& constants,
              const UpdateKernels& kernels, const SliceMemory& memory) {
  size_t first = 0;
  for (const uint32_t count : rule.blocks) {
    float* const w = memory.out + first;
    const float* const m = memory.slot0 + first;
    const float* const v = memory.slot1 + first;
    double ratio = 1;
    if (rule.trust_ratio) {
      BlockNorms norms;
      kernels.lamb_norms(constants, w, m, v, count, norms);
      const double value = Total(norms.value);
      const double direction = Total(norms.direction);
      if (value > 0 && direction > 0) ratio = std::sqrt(value) / std::sqrt(direction);
    }
    kernels.lamb_step(constants, static_cast<float>(static_cast<double>(constants.rate) * ratio), w,
                      m, v, count);
    first += count;
  }
}

}  // namespace

UpdateConstants::UpdateConstants(const UpdateRule& rule, const UpdateScalars& scalars,
                                 double shrink) {
  const bool into_gradient = rule.kind != UpdateRule::kAdamW && rule.kind != UpdateRule::kLamb;
  const double step_rate = scalars.rate;
  const double t = static_cast<double>(scalars.t);
  scale = static_cast<float>(static_cast<double>(scalars.scale) * shrink);
  rate = scalars.rate;
  decay = into_gradient ? static_cast<float>(scalars.decay) : 0.0f;
  keep = into_gradient ? 1.0f : static_cast<float>(1 - step_rate * scalars.decay);
  own_decay = static_cast<float>(scalars.decay);
  momentum = static_cast<float>(rule.momentum);
  rest = static_cast<float>(1 - rule.momentum);
  beta1 = static_cast<float>(rule.beta1);
  beta1_rest = static_cast<float>(1 - rule.beta1);
  beta2 = static_cast<float>(rule.beta2);
  beta2_rest = static_cast<float>(1 - rule.beta2);
  epsilon = static_cast<float>(rule.epsilon);
  const double moment = 1 - std::pow(rule.beta1, t);
  adam_rate = static_cast<float>(step_rate / moment);
  adam_root = static_cast<float>(1 / std::sqrt(1 - std::pow(rule.beta2, t)));
  lamb_moment = static_cast<float>(1 / moment);
}

int64_t ApplyUpdate(const UpdateRule& rule, const UpdateScalars& scalars, Payload gradient,
                    const SliceMemory& memory, InstructionSet set, bool looks) {
  STARLING_CHECK(PayloadBytes(gradient) == memory.elements * sizeof(float),
                 "gradient and slice differ in size");
  const UpdateKernels& kernels = UpdateKernelsFor(set);
  const auto whole = static_cast<uint32_t>(memory.elements);
  const bool clipped = rule.clip_norm > 0;
  const Blocks blocks = clipped ? Blocks(rule.blocks) : Blocks(&whole, 1);
  absl::InlinedVector<UpdateConstants, 2> constants;  // one per block
  if (clipped) {
    for (const double shrink : Shrinks(rule, scalars, gradient, kernels))
      constants.emplace_back(rule, scalars, shrink);
  } else {
    constants.emplace_back(rule, scalars, 1);
  }
  const auto update = kernels.update[rule.kind];
  int64_t bad = -1;
  const auto look = [&](const float* values, size_t first, size_t count) {
    const int64_t at = values == nullptr ? -1 : FirstNonFinite(values + first, count, set);
    if (at >= 0 && (bad < 0 || static_cast<int64_t>(first) + at < bad))
      bad = static_cast<int64_t>(first) + at;
  };
  ForEachBlockRun(
      gradient, blocks,
      [&](const UnalignedFloat* values, size_t first, size_t count, size_t block, size_t) {
        update(constants[block],
               UpdateRun{.gradient = values,
                         .in = memory.in + first,
                         .out = memory.out + first,
                         .slot0 = memory.slot0 == nullptr ? nullptr : memory.slot0 + first,
                         .slot1 = memory.slot1 == nullptr ? nullptr : memory.slot1 + first,
                         .count = count});
        if (!looks || bad >= 0) return;
        for (const float* written : {memory.out, memory.slot0, memory.slot1})
          look(written, first, count);  // while it is in the cache
      });
  if (rule.kind != UpdateRule::kLamb) return bad;
  StepLamb(rule, constants[0], kernels, memory);
  if (looks) look(memory.out, 0, memory.elements);
  return bad;
}

int64_t AddPayload(Payload from, float* into, InstructionSet set) {
  const UpdateKernels& kernels = UpdateKernelsFor(set);
  int64_t first_non_finite = -1;
  ForEachRun(from, kRunElements, [&](const UnalignedFloat* values, size_t first, size_t count) {
    kernels.add(values, into + first, count);
    const int64_t bad = first_non_finite < 0 ? FirstNonFinite(into + first, count, set) : -1;
    if (bad >= 0) first_non_finite = static_cast<int64_t>(first) + bad;
  });
  return first_non_finite;
}

}  // namespace starling
