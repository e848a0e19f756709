// Shared by loops over floats: ranges for kernel threads, sums in a fixed order, padding. Private
// to kernels/cpu.
#ifndef STARLING_KERNELS_CPU_LOOPS_H_
#define STARLING_KERNELS_CPU_LOOPS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/operator.h"

namespace starling {

// Sixteen floats at any float-aligned address: one AVX-512 register, separate lanes elsewhere.
typedef float Lanes16 __attribute__((vector_size(64), aligned(4), may_alias));
inline constexpr int64_t kLanes = 16;

// With fewer elements a second thread costs more than it gains.
inline constexpr int64_t kParallelElements = 1 << 14;

// Calls fn(begin, end) for contiguous ranges that cover [0, count), one on each of `threads` OpenMP
// threads; inline if `elements` is small. What fn computes for an index must not depend on its
// range. fn must not throw.
template <typename Fn>
void ParallelRanges(int threads, int64_t count, int64_t elements, Fn fn) {
  const int64_t parts = elements < kParallelElements ? 1 : std::min<int64_t>(threads, count);
  if (parts <= 1) {
    fn(int64_t{0}, count);
    return;
  }
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    fn(count * part / parts, count * (part + 1) / parts);
  }
}

// Sums and the maximum of a row, always in the same order.
float SumOf(const float* x, int64_t count);
float SumOfProducts(const float* a, const float* b, int64_t count);
float SumOfSquares(const float* x, float mean, int64_t count);  // of (x - mean)^2
float MaximumOf(const float* x, int64_t count);                 // may ignore NaN

// y[i] = exp(x[i] - shift); x and y may alias.
void ExpOf(const float* x, float shift, float* y, int64_t count);

// x[i] *= factor.
void ScaleBy(float factor, float* x, int64_t count);

// y += added (unless null), then, with `relu`, max(y, 0), in `rows` rows of `width` floats that are
// `stride` apart in both. NaN propagates.
void AddAndRectify(const float* added, bool relu, int64_t rows, int64_t width, int64_t stride,
                   float* y);

// to = y > 0 ? dy : 0, the gradient before a ReLU whose output is y; rows of y and dy are `stride`
// apart, those of `to` stride_to.
void GateRows(const float* y, const float* dy, int64_t rows, int64_t width, int64_t stride,
              float* to, int64_t stride_to);

// Zeroes the elements that pad a value's format.
void ZeroPadding(const Shape& shape, ValueFormat format, float* data);

}  // namespace starling

#endif  // STARLING_KERNELS_CPU_LOOPS_H_
