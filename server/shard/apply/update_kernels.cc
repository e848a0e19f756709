#include "server/shard/apply/update_kernels.h"

#include <algorithm>
#include <cstring>

#include "server/shard/apply/instruction_set.h"

namespace starling {
namespace {

#define STARLING_INLINE __attribute__((always_inline)) inline

// Elements are independent, but the load and the store of one index may alias (in == out): tells
// the compiler that different indices do not depend on each other.
template <typename Math>
STARLING_INLINE void UpdateLoop(const UpdateConstants& constants, const UpdateRun& r) {
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

STARLING_INLINE void AddLoop(const UnalignedFloat* from, float* into, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) into[i] = into[i] + from[i];
}

// Eight lanes each, in one register of the target or several.
typedef float EightFloats __attribute__((vector_size(32)));
typedef double EightDoubles __attribute__((vector_size(64)));

STARLING_INLINE void AddSquaresLoop(const UnalignedFloat* from, size_t count, size_t begin,
                                    NormLanes& lanes) {
  size_t i = 0;
  const auto add_one = [&] {
    const double x = from[i];
    lanes[(begin + i) % kNormLanes] += x * x;
    ++i;
  };
  while (i < count && (begin + i) % kNormLanes != 0) add_one();
  EightDoubles low, high;
  std::memcpy(&low, &lanes[0], sizeof(low));
  std::memcpy(&high, &lanes[8], sizeof(high));
  for (; i + kNormLanes <= count; i += kNormLanes) {
    EightFloats a, b;
    std::memcpy(&a, from + i, sizeof(a));
    std::memcpy(&b, from + i + 8, sizeof(b));
    const EightDoubles wide_a = __builtin_convertvector(a, EightDoubles);
    const EightDoubles wide_b = __builtin_convertvector(b, EightDoubles);
    low += wide_a * wide_a;
    high += wide_b * wide_b;
  }
  std::memcpy(&lanes[0], &low, sizeof(low));
  std::memcpy(&lanes[8], &high, sizeof(high));
  while (i < count) add_one();
}

STARLING_INLINE void LambNormsLoop(const UpdateConstants& constants, const float* w, const float* m,
                                   const float* v, size_t count, BlockNorms& norms) {
  constexpr size_t kChunk = 512;  // a multiple of the lanes
  const UpdateConstants c = constants;
  alignas(64) float direction[kChunk];
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t n = std::min(kChunk, count - begin);
#pragma GCC ivdep
    for (size_t i = 0; i < n; ++i)
      direction[i] = LambMath::Direction(c, w[begin + i], m[begin + i], v[begin + i]);
    AddSquaresLoop(reinterpret_cast<const UnalignedFloat*>(w + begin), n, begin, norms.value);
    AddSquaresLoop(reinterpret_cast<const UnalignedFloat*>(direction), n, begin, norms.direction);
  }
}

STARLING_INLINE void LambStepLoop(const UpdateConstants& constants, float rate, float* w,
                                  const float* m, const float* v, size_t count) {
  const UpdateConstants c = constants;
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) w[i] = w[i] - rate * LambMath::Direction(c, w[i], m[i], v[i]);
}

// The same loops, compiled for each instruction set.
#define STARLING_KERNELS(SUFFIX, ATTRIBUTE)                                                       \
  template <typename Math>                                                                        \
  ATTRIBUTE void Update##SUFFIX(const UpdateConstants& c, const UpdateRun& r) {                   \
    UpdateLoop<Math>(c, r);                                                                       \
  }                                                                                               \
  ATTRIBUTE void Add##SUFFIX(const UnalignedFloat* from, float* into, size_t n) {                 \
    AddLoop(from, into, n);                                                                       \
  }                                                                                               \
  ATTRIBUTE void AddSquares##SUFFIX(const UnalignedFloat* from, size_t n, size_t begin,           \
                                    NormLanes& lanes) {                                           \
    AddSquaresLoop(from, n, begin, lanes);                                                        \
  }                                                                                               \
  ATTRIBUTE void LambNorms##SUFFIX(const UpdateConstants& c, const float* w, const float* m,      \
                                   const float* v, size_t n, BlockNorms& norms) {                 \
    LambNormsLoop(c, w, m, v, n, norms);                                                          \
  }                                                                                               \
  ATTRIBUTE void LambStep##SUFFIX(const UpdateConstants& c, float rate, float* w, const float* m, \
                                  const float* v, size_t n) {                                     \
    LambStepLoop(c, rate, w, m, v, n);                                                            \
  }                                                                                               \
  constexpr UpdateKernels k##SUFFIX = {                                                           \
      {Update##SUFFIX<SgdMath>, Update##SUFFIX<MomentumMath>, Update##SUFFIX<NesterovMath>,       \
       Update##SUFFIX<AdagradMath>, Update##SUFFIX<AdamMath>, Update##SUFFIX<AdamMath>,           \
       Update##SUFFIX<LambMath>, Update##SUFFIX<StatisticMath>},                                  \
      Add##SUFFIX,                                                                                \
      AddSquares##SUFFIX,                                                                         \
      LambNorms##SUFFIX,                                                                          \
      LambStep##SUFFIX};

STARLING_KERNELS(Portable, )
#if defined(__x86_64__)
STARLING_KERNELS(Avx2, STARLING_APPLY_AVX2)
STARLING_KERNELS(Avx512, STARLING_APPLY_AVX512)
#endif
#undef STARLING_KERNELS
#undef STARLING_INLINE

}  // namespace

double Total(const NormLanes& lanes) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

const UpdateKernels& UpdateKernelsFor(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return kAvx512;
  if (set == InstructionSet::kAvx2) return kAvx2;
#endif
  (void)set;
  return kPortable;
}

}  // namespace starling
