#include "kernels/cpu/loops.h"

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/vector_math.h"

namespace starling {
namespace {

// Sums the sixteen lanes, then the remainder.
STARLING_INLINE float AddUp(const Lanes16& lanes, float rest) {
  float sums[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) sums[i] = lanes[i];
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0] + rest;
}

}  // namespace

STARLING_VECTOR_CLONES float SumOf(const float* x, int64_t count) {
  Lanes16 sum = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) sum += *reinterpret_cast<const Lanes16*>(x + i);
  float rest = 0;
  for (; i < count; ++i) rest += x[i];
  return AddUp(sum, rest);
}

STARLING_VECTOR_CLONES float SumOfProducts(const float* a, const float* b, int64_t count) {
  Lanes16 sum = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    sum += *reinterpret_cast<const Lanes16*>(a + i) * *reinterpret_cast<const Lanes16*>(b + i);
  }
  float rest = 0;
  for (; i < count; ++i) rest += a[i] * b[i];
  return AddUp(sum, rest);
}

STARLING_VECTOR_CLONES float SumOfSquares(const float* x, float mean, int64_t count) {
  Lanes16 sum = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Lanes16 d = *reinterpret_cast<const Lanes16*>(x + i) - mean;
    sum += d * d;
  }
  float rest = 0;
  for (; i < count; ++i) rest += (x[i] - mean) * (x[i] - mean);
  return AddUp(sum, rest);
}

STARLING_VECTOR_CLONES float MaximumOf(const float* x, int64_t count) {
  float most = x[0];
  int64_t i = 0;
  if (count >= kLanes) {
    Lanes16 top = *reinterpret_cast<const Lanes16*>(x);
    for (i = kLanes; i + kLanes <= count; i += kLanes) {
      const Lanes16 next = *reinterpret_cast<const Lanes16*>(x + i);
      top = next > top ? next : top;
    }
    for (int64_t l = 0; l < kLanes; ++l) most = top[l] > most ? top[l] : most;
  }
  for (; i < count; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

STARLING_VECTOR_CLONES void ExpOf(const float* x, float shift, float* y, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = VectorExp(x[i] - shift);
}

STARLING_VECTOR_CLONES void ScaleBy(float factor, float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

STARLING_VECTOR_CLONES void AddAndRectify(const float* added, bool relu, int64_t rows,
                                          int64_t width, int64_t stride, float* y) {
  for (int64_t r = 0; r < rows; ++r, y += stride) {
    if (added != nullptr) {
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) y[i] += added[i];
      added += stride;
    }
    if (!relu) continue;
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) y[i] = y[i] <= 0 ? 0 : y[i];
  }
}

STARLING_VECTOR_CLONES void GateRows(const float* y, const float* dy, int64_t rows, int64_t width,
                                     int64_t stride, float* to, int64_t stride_to) {
  for (int64_t r = 0; r < rows; ++r, y += stride, dy += stride, to += stride_to) {
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) to[i] = y[i] > 0 ? dy[i] : 0;
  }
}

void ZeroPadding(const Shape& shape, ValueFormat format, float* data) {
  const int64_t block = BlockOf(format);
  if (block == 1 || shape[1] % block == 0) return;
  const int64_t plane = shape[2] * shape[3], blocks = shape[1] / block + 1;
  const int64_t used = shape[1] % block;
  for (int64_t n = 0; n < shape[0]; ++n) {
    float* last = data + ((n + 1) * blocks - 1) * plane * block;
    for (int64_t p = 0; p < plane; ++p, last += block) std::fill(last + used, last + block, 0.0f);
  }
}

}  // namespace starling
