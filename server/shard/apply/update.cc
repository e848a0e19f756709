#include "server/shard/apply/update.h"

#include <algorithm>
#include <cmath>

#include "absl/base/internal/raw_logging.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/shard/apply/update_math.h"

namespace starling {
namespace {

// A run is taken while its gradient is in the second-level cache at most.
constexpr size_t kRunElements = 8 << 10;

struct Run {
  const UnalignedFloat* gradient;
  const float* in;
  float* out;
  float* slot0;
  float* slot1;
  size_t count;
};

// Each element is independent and the loads and stores of one index may meet (in == out), so the
// compiler is told that there is no dependence between different indices.
template <typename Math>
__attribute__((always_inline)) inline void UpdateLoop(const UpdateConstants& constants,
                                                      const Run& r) {
  const UpdateConstants c = constants;  // in registers: no store below can change it
  float none0 = 0;
  float none1 = 0;
#pragma GCC ivdep
  for (size_t i = 0; i < r.count; ++i) {
    float w = r.in[i];
    if constexpr (Math::kSlots == 0) {
      Math::Step(c, r.gradient[i], w, none0, none1);
    } else if constexpr (Math::kSlots == 1) {
      float s0 = r.slot0[i];
      Math::Step(c, r.gradient[i], w, s0, none1);
      r.slot0[i] = s0;
    } else {
      float s0 = r.slot0[i];
      float s1 = r.slot1[i];
      Math::Step(c, r.gradient[i], w, s0, s1);
      r.slot0[i] = s0;
      r.slot1[i] = s1;
    }
    r.out[i] = w;
  }
}

__attribute__((always_inline)) inline void AddLoop(const UnalignedFloat* from, float* into,
                                                   size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) into[i] = into[i] + from[i];
}

using UpdateKernel = void (*)(const UpdateConstants&, const Run&);
using AddKernel = void (*)(const UnalignedFloat*, float*, size_t);

// The same loop, compiled for each instruction set.
#define STARLING_KERNELS(SUFFIX, ATTRIBUTE)                                       \
  template <typename Math>                                                        \
  ATTRIBUTE void Update##SUFFIX(const UpdateConstants& c, const Run& r) {         \
    UpdateLoop<Math>(c, r);                                                       \
  }                                                                               \
  ATTRIBUTE void Add##SUFFIX(const UnalignedFloat* from, float* into, size_t n) { \
    AddLoop(from, into, n);                                                       \
  }                                                                               \
  UpdateKernel Kernel##SUFFIX(UpdateRule::Kind kind) {                            \
    switch (kind) {                                                               \
      case UpdateRule::kSgd:                                                      \
        return Update##SUFFIX<SgdMath>;                                           \
      case UpdateRule::kMomentum:                                                 \
        return Update##SUFFIX<MomentumMath>;                                      \
      case UpdateRule::kStatistic:                                                \
        return Update##SUFFIX<StatisticMath>;                                     \
      default:                                                                    \
        return Update##SUFFIX<AdamMath>;                                          \
    }                                                                             \
  }

STARLING_KERNELS(Portable, )
#if defined(__x86_64__)
STARLING_KERNELS(Avx2, __attribute__((target("avx2"))))
STARLING_KERNELS(Avx512,
                 __attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512"))))
#endif
#undef STARLING_KERNELS

UpdateKernel UpdateKernelFor(UpdateRule::Kind kind, InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return KernelAvx512(kind);
  if (set == InstructionSet::kAvx2) return KernelAvx2(kind);
#endif
  (void)set;
  return KernelPortable(kind);
}

AddKernel AddKernelFor(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return AddAvx512;
  if (set == InstructionSet::kAvx2) return AddAvx2;
#endif
  (void)set;
  return AddPortable;
}

absl::Status CheckRange(const char* field, double value, bool good, const char* expected) {
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer: ", field, " is ", value, "; expected ", expected));
}

absl::Status CheckFraction(const char* field, double value) {
  return CheckRange(field, value, value >= 0 && value < 1, "a number in [0, 1)");
}

absl::Status FillAdam(const Optimizer::Adam& adam, UpdateRule* rule) {
  rule->beta1 = adam.beta1();
  rule->beta2 = adam.beta2();
  rule->epsilon = adam.epsilon();
  STARLING_RETURN_IF_ERROR(CheckFraction("beta1", rule->beta1));
  STARLING_RETURN_IF_ERROR(CheckFraction("beta2", rule->beta2));
  return CheckRange("epsilon", rule->epsilon, std::isfinite(rule->epsilon) && rule->epsilon > 0,
                    "a finite number above 0");
}

}  // namespace

absl::StatusOr<UpdateRule> MakeUpdateRule(const Optimizer& optimizer, const Slice& slice) {
  UpdateRule rule;
  if (slice.kind == STATISTIC) {
    rule.kind = UpdateRule::kStatistic;
    rule.momentum = slice.statistic_momentum;
    STARLING_RETURN_IF_ERROR(CheckRange("statistic_momentum", rule.momentum,
                                        rule.momentum >= 0 && rule.momentum <= 1,
                                        "a number in [0, 1]"));
    return rule;
  }
  rule.weight_decay = optimizer.weight_decay();
  STARLING_RETURN_IF_ERROR(CheckRange("weight_decay", rule.weight_decay,
                                      std::isfinite(rule.weight_decay) && rule.weight_decay >= 0,
                                      "a finite number, at least 0"));
  switch (optimizer.kind_case()) {
    case Optimizer::kSgd:
      return rule;
    case Optimizer::kMomentum:
      rule.kind = UpdateRule::kMomentum;
      rule.momentum = optimizer.momentum().momentum();
      STARLING_RETURN_IF_ERROR(CheckFraction("momentum", rule.momentum));
      return rule;
    case Optimizer::kAdam:
      rule.kind = UpdateRule::kAdam;
      STARLING_RETURN_IF_ERROR(FillAdam(optimizer.adam(), &rule));
      return rule;
    case Optimizer::kAdamw:
      rule.kind = UpdateRule::kAdamW;
      STARLING_RETURN_IF_ERROR(FillAdam(optimizer.adamw(), &rule));
      return rule;
    case Optimizer::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("optimizer: expected one of sgd, momentum, adam and adamw");
}

UpdateConstants::UpdateConstants(const UpdateRule& rule, const UpdateScalars& scalars) {
  const bool decoupled = rule.kind == UpdateRule::kAdamW;
  const double step_rate = scalars.rate;
  const double t = static_cast<double>(scalars.t);
  scale = scalars.scale;
  rate = scalars.rate;
  decay = decoupled ? 0.0f : static_cast<float>(rule.weight_decay);
  keep = decoupled ? static_cast<float>(1 - step_rate * rule.weight_decay) : 1.0f;
  momentum = static_cast<float>(rule.momentum);
  rest = static_cast<float>(1 - rule.momentum);
  beta1 = static_cast<float>(rule.beta1);
  beta1_rest = static_cast<float>(1 - rule.beta1);
  beta2 = static_cast<float>(rule.beta2);
  beta2_rest = static_cast<float>(1 - rule.beta2);
  epsilon = static_cast<float>(rule.epsilon);
  adam_rate = static_cast<float>(step_rate / (1 - std::pow(rule.beta1, t)));
  adam_root = static_cast<float>(1 / std::sqrt(1 - std::pow(rule.beta2, t)));
}

void ApplyUpdate(const UpdateRule& rule, const UpdateScalars& scalars, Payload gradient,
                 const SliceMemory& memory, InstructionSet set) {
  ABSL_RAW_CHECK(PayloadBytes(gradient) == memory.elements * sizeof(float),
                 "gradient and slice differ in size");
  const UpdateConstants constants(rule, scalars);
  const UpdateKernel kernel = UpdateKernelFor(rule.kind, set);
  ForEachRun(gradient, kRunElements, [&](const UnalignedFloat* values, size_t first, size_t count) {
    kernel(constants, Run{.gradient = values,
                          .in = memory.in + first,
                          .out = memory.out + first,
                          .slot0 = memory.slot0 == nullptr ? nullptr : memory.slot0 + first,
                          .slot1 = memory.slot1 == nullptr ? nullptr : memory.slot1 + first,
                          .count = count});
  });
}

void AddPayload(Payload from, float* into, InstructionSet set) {
  const AddKernel kernel = AddKernelFor(set);
  ForEachRun(from, kRunElements, [&](const UnalignedFloat* values, size_t first, size_t count) {
    kernel(values, into + first, count);
  });
}

void CopyPayload(Payload from, float* to) {
  auto* bytes = reinterpret_cast<uint8_t*>(to);
  for (const PayloadPiece piece : from) bytes = std::copy(piece.begin(), piece.end(), bytes);
}

}  // namespace starling
