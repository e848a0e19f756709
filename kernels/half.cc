#include "kernels/half.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

// A function compiled for its caller's instruction set.
#define STARLING_INLINE inline __attribute__((always_inline))

namespace starling {
namespace {

constexpr uint32_t kInfinity = 0x7f800000;  // fp32, as are the next ones
constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kRebias = 112u << 23;        // fp16's exponent 0 is fp32's 112
constexpr uint32_t kFp16Overflow = 0x477ff000;  // 65,520: halfway between 65,504 and 2^16
constexpr uint32_t kFp16Normal = 0x38800000;    // 2^-14

STARLING_INLINE uint16_t Bf16Of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & kMagnitude) > kInfinity ? quiet : rounded);
}

STARLING_INLINE float OfBf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

STARLING_INLINE uint16_t Fp16Of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000, size = bits & kMagnitude;
  if (size > kInfinity) return static_cast<uint16_t>(sign | 0x7e00 | ((size >> 13) & 0x3ff));
  if (size >= kFp16Overflow) return static_cast<uint16_t>(sign | 0x7c00);
  if (size < kFp16Normal) {  // the low bits of 0.5 + size count 2^-24, fp16's smallest number
    const float shifted = std::bit_cast<float>(size) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((size + 0xfff + ((size >> 13) & 1) - kRebias) >> 13));
}

STARLING_INLINE float OfFp16(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16, size = x & 0x7fff;
  if (size > 0x7c00) return std::bit_cast<float>(sign | kInfinity | 0x400000 | (size << 13));
  if (size == 0x7c00) return std::bit_cast<float>(sign | kInfinity);
  if (size < 0x400) {
    const float number = static_cast<float>(size) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(number));
  }
  return std::bit_cast<float>(sign | ((size << 13) + kRebias));
}

STARLING_INLINE void NarrowBf16Loop(const float* from, uint16_t* to, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = Bf16Of(from[i]);
}

STARLING_INLINE void WidenBf16Loop(const uint16_t* from, float* to, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = OfBf16(from[i]);
}

void NarrowBf16(const float* from, uint16_t* to, int64_t count) { NarrowBf16Loop(from, to, count); }
void WidenBf16(const uint16_t* from, float* to, int64_t count) { WidenBf16Loop(from, to, count); }

void NarrowFp16(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = Fp16Of(from[i]);
}
void WidenFp16(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = OfFp16(from[i]);
}

#if defined(__x86_64__)

#define STARLING_AVX2 __attribute__((target("avx2,f16c")))
#define STARLING_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))

STARLING_AVX2 void NarrowBf16Avx2(const float* from, uint16_t* to, int64_t count) {
  NarrowBf16Loop(from, to, count);
}
STARLING_AVX2 void WidenBf16Avx2(const uint16_t* from, float* to, int64_t count) {
  WidenBf16Loop(from, to, count);
}
STARLING_AVX2 void NarrowFp16Avx2(const float* from, uint16_t* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) to[i] = Fp16Of(from[i]);
}
STARLING_AVX2 void WidenFp16Avx2(const uint16_t* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  for (; i < count; ++i) to[i] = OfFp16(from[i]);
}

STARLING_AVX512 void NarrowBf16Avx512(const float* from, uint16_t* to, int64_t count) {
  NarrowBf16Loop(from, to, count);
}
STARLING_AVX512 void WidenBf16Avx512(const uint16_t* from, float* to, int64_t count) {
  WidenBf16Loop(from, to, count);
}
STARLING_AVX512 void NarrowFp16Avx512(const float* from, uint16_t* to, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) to[i] = Fp16Of(from[i]);
}
STARLING_AVX512 void WidenFp16Avx512(const uint16_t* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm512_storeu_ps(
        to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  }
  for (; i < count; ++i) to[i] = OfFp16(from[i]);
}

#endif  // defined(__x86_64__)

#if defined(__x86_64__)
// __builtin_cpu_supports of Clang 16 does not take "f16c".
bool HasF16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

std::vector<HalfVersion> FindVersions() {
  std::vector<HalfVersion> versions = {{"portable", NarrowBf16, WidenBf16, NarrowFp16, WidenFp16}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && HasF16c()) {
    versions.push_back({"avx2", NarrowBf16Avx2, WidenBf16Avx2, NarrowFp16Avx2, WidenFp16Avx2});
  }
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    versions.push_back(
        {"avx512", NarrowBf16Avx512, WidenBf16Avx512, NarrowFp16Avx512, WidenFp16Avx512});
  }
#endif
  return versions;
}

const HalfVersion& Fastest() {
  static const HalfVersion version = HalfVersions().back();
  return version;
}

// Whether no number has all bits of `mask` set.
template <typename Bits>
bool NoneHas(Bits mask, const void* numbers, size_t bytes) {
  const char* const from = static_cast<const char*>(numbers);
  for (size_t at = 0; at + sizeof(Bits) <= bytes; at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, from + at, sizeof(bits));
    if ((bits & mask) == mask) return false;
  }
  return true;
}

}  // namespace

const std::vector<HalfVersion>& HalfVersions() {
  static const std::vector<HalfVersion>* versions = new std::vector<HalfVersion>(FindVersions());
  return *versions;
}

void Narrow(DataType type, const float* from, uint16_t* to, int64_t count) {
  const HalfVersion& version = Fastest();
  (type == DataType::kBf16 ? version.narrow_bf16 : version.narrow_fp16)(from, to, count);
}

void Widen(DataType type, const uint16_t* from, float* to, int64_t count) {
  const HalfVersion& version = Fastest();
  (type == DataType::kBf16 ? version.widen_bf16 : version.widen_fp16)(from, to, count);
}

void AddNarrow(DataType type, const uint16_t* from, uint16_t* to, int64_t count) {
  constexpr int64_t kBlock = 1024;  // both blocks stay in the L1 cache
  float sum[kBlock], more[kBlock];
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t some = std::min(kBlock, count - at);
    Widen(type, to + at, sum, some);
    Widen(type, from + at, more, some);
    for (int64_t i = 0; i < some; ++i) sum[i] += more[i];
    Narrow(type, sum, to + at, some);
  }
}

bool AllFinite(DataType type, const void* numbers, size_t bytes) {
  switch (type) {
    case DataType::kBf16: return NoneHas<uint16_t>(0x7f80, numbers, bytes);
    case DataType::kFp16: return NoneHas<uint16_t>(0x7c00, numbers, bytes);
    case DataType::kFp32: break;
  }
  return NoneHas<uint32_t>(kInfinity, numbers, bytes);
}

}  // namespace starling
