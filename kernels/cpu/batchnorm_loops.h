// What batch norm's loops work on: a value's channels in groups, their sums in double, and each
// channel's scaling factors. Private to kernels/cpu.
#ifndef STARLING_KERNELS_CPU_BATCHNORM_LOOPS_H_
#define STARLING_KERNELS_CPU_BATCHNORM_LOOPS_H_

#include <cstdint>
#include <vector>

#include "kernels/operator.h"

namespace starling {

// How many values are summed in float before the sum is added to one in double.
inline constexpr int64_t kFloatSums = 16;

// A piece fits the L1 cache three times and holds a whole number of float sums in every format.
inline constexpr int64_t kPieceFloats = 4096;
static_assert(kPieceFloats / 16 % kFloatSums == 0);

// At most 16 of a value's channels, processed together while they are in the cache. Channel c of
// `width` is at base + c; its next point is point_stride further; after `points` points comes the
// next of `runs`.
struct Group {
  int64_t channel, width, base, runs, run_stride, points, point_stride;
  int64_t count() const { return runs * points; }
};

// One number per channel of a group; those past the value's last channel are zero.
struct Row {
  alignas(64) float at[16] = {};
};
struct Sums {
  alignas(64) double plain[16] = {}, product[16] = {};
};

// The value's channels in groups, for any format. If points are contiguous (plain planes), a group
// is one channel.
std::vector<Group> GroupsOf(const Shape& shape, ValueFormat format);

// A group's points, `stride` floats apart.
struct Points {
  const float* at;
  int64_t stride;
};

// plain[l] += a - shift_a, product[l] += (a - shift_a)(b - shift_b), over `points` of `width`
// channels.
void SumPoints(int64_t width, Points a, Points b, const Row& shift_a, const Row& shift_b,
               int64_t points, Sums* sums);

// Each channel's scaling factors.
struct Factors {
  Row mean, scale, offset, slope;
};

// y = (x - mean) * scale + offset, for `points` of `width` channels; y has the stride of x.
void Normalize(Points x, const Factors& f, int64_t points, int64_t width, float* y);

// dx = (dy - offset - (x - mean) * slope) * scale; dx has the stride of x. `dy` and `dx` may alias.
void Denormalize(Points x, Points dy, const Factors& f, int64_t points, int64_t width, float* dx);

}  // namespace starling

#endif  // STARLING_KERNELS_CPU_BATCHNORM_LOOPS_H_
