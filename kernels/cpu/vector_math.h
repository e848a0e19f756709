// exp, tanh, erf and the logistic function as straight-line float arithmetic, which the compiler
// vectorizes inside loops (STARLING_VECTOR_CLONES) and which gives the same bits for every
// instruction set. NaN propagates. Private to kernels/cpu.
#ifndef STARLING_KERNELS_CPU_VECTOR_MATH_H_
#define STARLING_KERNELS_CPU_VECTOR_MATH_H_

#include <bit>
#include <cstdint>

// A function compiled for its caller's instruction set.
#define STARLING_INLINE inline __attribute__((always_inline))

namespace starling {

// Relative error below 2e-7 in [-87.3, 88.3]; clamped to the value at the end of that range beyond.
// Cody and Waite's reduction by ln 2 in two parts, Moshier's polynomial (Cephes, expf).
STARLING_INLINE float VectorExp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = x - n * 0.693359375f - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float mantissa = p * (r * r) + r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - 0x4b400000u + 127u;
  return mantissa * std::bit_cast<float>(exponent << 23);
}

STARLING_INLINE float VectorSigmoid(float x) { return 1.0f / (1.0f + VectorExp(-x)); }

// Relative error below 1e-6: an odd rational minimax function on [-7.9, 7.9]; beyond it, tanh is 1
// in float.
STARLING_INLINE float VectorTanh(float x) {
  x = x < -7.90531110763549805f ? -7.90531110763549805f : x;
  x = x > 7.90531110763549805f ? 7.90531110763549805f : x;
  const float s = x * x;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return x * p / q;
}

// Relative error below 2e-6; an odd rational minimax function on [-4, 4].
STARLING_INLINE float VectorErf(float x) {
  x = x < -4.0f ? -4.0f : x;
  x = x > 4.0f ? 4.0f : x;
  const float s = x * x;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s + -2.10102402082508e-06f;
  p = p * s + -5.69250639462346e-05f;
  p = p * s + -7.34990630326855e-04f;
  p = p * s + -2.95459980854025e-03f;
  p = p * s + -1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s + -2.13374055278905e-04f;
  q = q * s + -1.68282697438203e-03f;
  q = q * s + -7.37332916720468e-03f;
  q = q * s + -1.42647390514189e-02f;
  return x * p / q;
}

}  // namespace starling

#endif  // STARLING_KERNELS_CPU_VECTOR_MATH_H_
