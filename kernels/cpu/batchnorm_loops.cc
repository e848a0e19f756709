#include "kernels/cpu/batchnorm_loops.h"

#include <algorithm>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/vector_math.h"

namespace starling {
namespace {

// Vector types by width; as members, because a template argument would lose their alignment.
struct Wide {
  typedef Lanes16 Lanes;
  typedef double Doubles __attribute__((vector_size(128), aligned(8), may_alias));
};
struct Half {
  typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));
  typedef double Doubles __attribute__((vector_size(64), aligned(8), may_alias));
};

// plain[l] += a - shift_a, product[l] += (a - shift_a)(b - shift_b), over `points` of one run.
template <typename Vectors>
STARLING_INLINE void SumLanes(const float* a, const float* b, const Row& shift_a,
                              const Row& shift_b, int64_t points, int64_t stride_a,
                              int64_t stride_b, Sums* sums) {
  using Lanes = typename Vectors::Lanes;
  using Doubles = typename Vectors::Doubles;
  const Lanes less_a = *reinterpret_cast<const Lanes*>(shift_a.at);
  const Lanes less_b = *reinterpret_cast<const Lanes*>(shift_b.at);
  Doubles plain = *reinterpret_cast<const Doubles*>(sums->plain);
  Doubles product = *reinterpret_cast<const Doubles*>(sums->product);
  for (int64_t begin = 0; begin < points; begin += kFloatSums) {
    const int64_t end = std::min(begin + kFloatSums, points);
    Lanes some = {}, products = {};
    for (int64_t p = begin; p < end; ++p, a += stride_a, b += stride_b) {
      const Lanes d = *reinterpret_cast<const Lanes*>(a) - less_a;
      some += d;
      products += d * (*reinterpret_cast<const Lanes*>(b) - less_b);
    }
    plain += __builtin_convertvector(some, Doubles);
    product += __builtin_convertvector(products, Doubles);
  }
  *reinterpret_cast<Doubles*>(sums->plain) = plain;
  *reinterpret_cast<Doubles*>(sums->product) = product;
}

STARLING_VECTOR_CLONES void SumLanes16(const float* a, const float* b, const Row& shift_a,
                                       const Row& shift_b, int64_t points, int64_t stride_a,
                                       int64_t stride_b, Sums* sums) {
  SumLanes<Wide>(a, b, shift_a, shift_b, points, stride_a, stride_b, sums);
}

STARLING_VECTOR_CLONES void SumLanes8(const float* a, const float* b, const Row& shift_a,
                                      const Row& shift_b, int64_t points, int64_t stride_a,
                                      int64_t stride_b, Sums* sums) {
  SumLanes<Half>(a, b, shift_a, shift_b, points, stride_a, stride_b, sums);
}

// One channel with contiguous points.
STARLING_VECTOR_CLONES void SumPlane(const float* a, const float* b, float shift_a, float shift_b,
                                     int64_t points, Sums* sums) {
  Wide::Doubles plain = {}, product = {};
  int64_t p = 0;
  for (; p + kLanes <= points;) {
    const int64_t end = std::min(p + kFloatSums * kLanes, points / kLanes * kLanes);
    Lanes16 some = {}, products = {};
    for (; p < end; p += kLanes) {
      const Lanes16 d = *reinterpret_cast<const Lanes16*>(a + p) - shift_a;
      some += d;
      products += d * (*reinterpret_cast<const Lanes16*>(b + p) - shift_b);
    }
    plain += __builtin_convertvector(some, Wide::Doubles);
    product += __builtin_convertvector(products, Wide::Doubles);
  }
  for (int64_t i = 0; p < points; ++p, ++i) {
    const float d = a[p] - shift_a;
    plain[i] += double{d};
    product[i] += double{d} * double{b[p] - shift_b};
  }
  for (int64_t i = 0; i < kLanes; ++i) {
    sums->plain[0] += plain[i];
    sums->product[0] += product[i];
  }
}

// Any other width.
void SumFew(const float* a, const float* b, const Row& shift_a, const Row& shift_b, int64_t points,
            int64_t width, int64_t stride_a, int64_t stride_b, Sums* sums) {
  for (int64_t p = 0; p < points; ++p, a += stride_a, b += stride_b) {
    for (int64_t l = 0; l < width; ++l) {
      const double d = double{a[l] - shift_a.at[l]};
      sums->plain[l] += d;
      sums->product[l] += d * double{b[l] - shift_b.at[l]};
    }
  }
}

// y = (x - mean) * scale + offset; or, with dy, whose points are stride_dy apart,
// y = (dy - offset - (x - mean) * slope) * scale. `dy` and `y` may alias.
template <bool kGradient, typename Vectors>
STARLING_INLINE void MapLanes(const float* x, const float* dy, int64_t stride_dy, const Factors& f,
                              int64_t points, int64_t stride, float* y) {
  using Lanes = typename Vectors::Lanes;
  const Lanes mean = *reinterpret_cast<const Lanes*>(f.mean.at);
  const Lanes scale = *reinterpret_cast<const Lanes*>(f.scale.at);
  const Lanes offset = *reinterpret_cast<const Lanes*>(f.offset.at);
  const Lanes slope = *reinterpret_cast<const Lanes*>(f.slope.at);
  for (int64_t p = 0; p < points * stride; p += stride) {
    const Lanes d = *reinterpret_cast<const Lanes*>(x + p) - mean;
    Lanes* const to = reinterpret_cast<Lanes*>(y + p);
    if (kGradient) {
      *to = (*reinterpret_cast<const Lanes*>(dy) - offset - d * slope) * scale;
      dy += stride_dy;
    } else {
      *to = d * scale + offset;
    }
  }
}

// Likewise, channel by channel.
template <bool kGradient>
STARLING_INLINE void MapFew(const float* x, const float* dy, int64_t stride_dy, const Factors& f,
                            int64_t points, int64_t stride, int64_t width, float* y) {
  for (int64_t l = 0; l < width; ++l) {
    const float mean = f.mean.at[l], scale = f.scale.at[l], offset = f.offset.at[l],
                slope = f.slope.at[l];
#pragma GCC ivdep
    for (int64_t p = 0; p < points; ++p) {
      const int64_t at = p * stride + l;
      const float d = x[at] - mean;
      y[at] = kGradient ? (dy[p * stride_dy + l] - offset - d * slope) * scale : d * scale + offset;
    }
  }
}

template <bool kGradient>
STARLING_INLINE void MapAny(const float* x, const float* dy, int64_t stride_dy, const Factors& f,
                            int64_t points, int64_t stride, int64_t width, float* y) {
  if (width == 16) {
    MapLanes<kGradient, Wide>(x, dy, stride_dy, f, points, stride, y);
  } else if (width == 8) {
    MapLanes<kGradient, Half>(x, dy, stride_dy, f, points, stride, y);
  } else if (stride == 1) {
    MapFew<kGradient>(x, dy, 1, f, points, 1, 1, y);
  } else {
    MapFew<kGradient>(x, dy, stride_dy, f, points, stride, width, y);
  }
}

STARLING_VECTOR_CLONES void NormalizeAny(const float* x, const Factors& f, int64_t points,
                                         int64_t stride, int64_t width, float* y) {
  MapAny<false>(x, nullptr, 0, f, points, stride, width, y);
}

STARLING_VECTOR_CLONES void DenormalizeAny(const float* x, const float* dy, int64_t stride_dy,
                                           const Factors& f, int64_t points, int64_t stride,
                                           int64_t width, float* dx) {
  MapAny<true>(x, dy, stride_dy, f, points, stride, width, dx);
}

}  // namespace

std::vector<Group> GroupsOf(const Shape& shape, ValueFormat format) {
  const int64_t samples = shape[0], channels = shape[1];
  int64_t points = 1;
  for (size_t i = 2; i < shape.size(); ++i) points *= shape[i];
  const int64_t block = BlockOf(format);
  std::vector<Group> groups;
  if (block > 1) {
    const int64_t blocks = (channels + block - 1) / block, run = points * block;
    for (int64_t b = 0; b < blocks; ++b) {
      groups.push_back({b * block, block, b * run, samples, blocks * run, points, block});
    }
  } else if (format.id == kChannelsLast || points == 1) {
    for (int64_t c = 0; c < channels; c += 16) {
      groups.push_back(
          {c, std::min<int64_t>(16, channels - c), c, 1, 0, samples * points, channels});
    }
  } else {
    for (int64_t c = 0; c < channels; ++c) {
      groups.push_back({c, 1, c * points, samples, channels * points, points, 1});
    }
  }
  return groups;
}

void SumPoints(int64_t width, Points a, Points b, const Row& shift_a, const Row& shift_b,
               int64_t points, Sums* sums) {
  if (width == 16) {
    SumLanes16(a.at, b.at, shift_a, shift_b, points, a.stride, b.stride, sums);
  } else if (width == 8) {
    SumLanes8(a.at, b.at, shift_a, shift_b, points, a.stride, b.stride, sums);
  } else if (width == 1 && a.stride == 1 && b.stride == 1) {
    SumPlane(a.at, b.at, shift_a.at[0], shift_b.at[0], points, sums);
  } else {
    SumFew(a.at, b.at, shift_a, shift_b, points, width, a.stride, b.stride, sums);
  }
}

void Normalize(Points x, const Factors& f, int64_t points, int64_t width, float* y) {
  NormalizeAny(x.at, f, points, x.stride, width, y);
}

void Denormalize(Points x, Points dy, const Factors& f, int64_t points, int64_t width, float* dx) {
  DenormalizeAny(x.at, dy.at, dy.stride, f, points, x.stride, width, dx);
}

}  // namespace starling
