// Two-byte floats: conversions between fp32 and bf16 (8 bits of mantissa with the hidden one,
// fp32's range) or fp16 (IEEE 754 binary16: 11 bits, up to 65,504). Loops over arrays, in one
// version per instruction set; all versions give the same bits for every input.
//
// AVX-512's own conversion to bf16 is not used because it flushes fp32 denormals to zero.
// Conversions here are integer shifts and additions.
#ifndef STARLING_KERNELS_HALF_H_
#define STARLING_KERNELS_HALF_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/operator.h"

namespace starling {

// Bytes of one number.
constexpr size_t DataTypeBytes(DataType type) { return type == DataType::kFp32 ? 4 : 2; }

// Half of the distance between 1 and the next number: the greatest relative error of one rounding
// in the type's normal range.
constexpr double UnitRoundoff(DataType type) {
  return type == DataType::kBf16 ? 0x1p-8 : type == DataType::kFp16 ? 0x1p-11 : 0x1p-24;
}

// to[i] = from[i], rounded to nearest, ties to even; beyond the type's range it becomes infinity.
// NaN becomes a quiet NaN of the same sign. Here and below `type` is bf16 or fp16.
void Narrow(DataType type, const float* from, uint16_t* to, int64_t count);

// to[i] = from[i], exactly (fp16's signalling NaN becomes a quiet one).
void Widen(DataType type, const uint16_t* from, float* to, int64_t count);

// to[i] += from[i], added in fp32 and rounded once.
void AddNarrow(DataType type, const uint16_t* from, uint16_t* to, int64_t count);

// Whether none of the `bytes` / DataTypeBytes(type) numbers is infinite or NaN. Any type.
bool AllFinite(DataType type, const void* numbers, size_t bytes);

// One version of the loops. For tests; the functions above use the last of HalfVersions().
struct HalfVersion {
  const char* name;
  void (*narrow_bf16)(const float* from, uint16_t* to, int64_t count);
  void (*widen_bf16)(const uint16_t* from, float* to, int64_t count);
  void (*narrow_fp16)(const float* from, uint16_t* to, int64_t count);
  void (*widen_fp16)(const uint16_t* from, float* to, int64_t count);
};

// The versions that this CPU can run: the portable one first, the fastest last.
const std::vector<HalfVersion>& HalfVersions();

}  // namespace starling

#endif  // STARLING_KERNELS_HALF_H_
