// Batch norm (Ioffe and Szegedy 2015), with sums in double. A sum in float of tens of thousands of
// values that lie on one side of zero (an image's background) is wrong by 1e-5 or more, and the
// gradients of what comes before are small differences of such sums. Here only sixteen values at a
// time are summed in float, which is as fast as memory delivers them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/vector_math.h"

namespace starling {
namespace {

enum Parameter { kWeight = 0, kBias = 1, kMean = 2, kVariance = 3 };

// Values whose sum in float goes into one in double.
constexpr int64_t kFloatSums = 16;

// A piece fits the nearest cache three times, and holds whole sums of floats in every format.
constexpr int64_t kPieceFloats = 4096;
static_assert(kPieceFloats / 16 % kFloatSums == 0);

// Vectors by width; as members, because a template argument would lose their alignment.
struct Wide {
  typedef Lanes16 Lanes;
  typedef double Doubles __attribute__((vector_size(128), aligned(8), may_alias));
};
struct Narrow {
  typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));
  typedef double Doubles __attribute__((vector_size(64), aligned(8), may_alias));
};

// Some of a value's channels, at most 16, which are computed on their own while they lie in the
// cache. Channel c of `width` is at base + c; its next point is point_stride on, and after `points`
// of them follows the next of `runs`.
struct Group {
  int64_t channel, width, base, runs, run_stride, points, point_stride;
  int64_t count() const { return runs * points; }
};

// Some of a group's points as rows of floats that lie side by side: one row, if they all do.
struct Rows {
  int64_t count, width;
};
Rows RowsOf(const Group& g, int64_t points) {
  return g.point_stride == g.width ? Rows{1, points * g.width} : Rows{points, g.width};
}

// One number for each channel of a group; those past the value's last channel are zero.
struct Row {
  alignas(64) float at[16] = {};
};
struct Sums {
  alignas(64) double plain[16] = {}, product[16] = {};
};

// The value's channels in groups, in whatever format. With points side by side (plain planes) a group
// is one channel.
std::vector<Group> GroupsOf(const Shape& shape, ValueFormat format) {
  const int64_t samples = shape[0], channels = shape[1];
  int64_t points = 1;
  for (size_t i = 2; i < shape.size(); ++i) points *= shape[i];
  const int64_t block = format.id == kBlocked16 ? 16 : format.id == kBlocked8 ? 8 : 0;
  std::vector<Group> groups;
  if (block > 0) {
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
  SumLanes<Narrow>(a, b, shift_a, shift_b, points, stride_a, stride_b, sums);
}

// One channel, its points side by side.
STARLING_VECTOR_CLONES void SumPoints(const float* a, const float* b, float shift_a, float shift_b,
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

// Of `points` of one run: those of `a` are stride_a apart, those of `b` as the group says.
void SumRun(const Group& g, const float* a, int64_t stride_a, const float* b, const Row& shift_a,
            const Row& shift_b, int64_t points, Sums* sums) {
  if (g.width == 16) {
    SumLanes16(a, b, shift_a, shift_b, points, stride_a, g.point_stride, sums);
  } else if (g.width == 8) {
    SumLanes8(a, b, shift_a, shift_b, points, stride_a, g.point_stride, sums);
  } else if (g.width == 1 && g.point_stride == 1) {
    SumPoints(a, b, shift_a.at[0], shift_b.at[0], points, sums);
  } else {
    SumFew(a, b, shift_a, shift_b, points, g.width, stride_a, g.point_stride, sums);
  }
}

// The shifted values' sums, and those of their squares, of `runs` runs of `points` each.
Sums SumSquares(const Group& g, const float* x, const Row& shift, int64_t runs, int64_t points) {
  Sums sums;
  for (int64_t run = 0; run < runs; ++run) {
    const float* const at = x + g.base + run * g.run_stride;
    SumRun(g, at, g.point_stride, at, shift, shift, points, &sums);
  }
  return sums;
}

// What each channel's elements are scaled by.
struct Factors {
  Row mean, scale, offset, slope;
};

// y = (x - mean) * scale + offset; or, with dy, whose points are stride_dy apart,
// y = (dy - offset - (x - mean) * slope) * scale. `dy` and `y` may be one.
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
    MapLanes<kGradient, Narrow>(x, dy, stride_dy, f, points, stride, y);
  } else if (stride == 1) {
    MapFew<kGradient>(x, dy, 1, f, points, 1, 1, y);
  } else {
    MapFew<kGradient>(x, dy, stride_dy, f, points, stride, width, y);
  }
}

STARLING_VECTOR_CLONES void Normalize(const float* x, const Factors& f, int64_t points,
                                      int64_t stride, int64_t width, float* y) {
  MapAny<false>(x, nullptr, 0, f, points, stride, width, y);
}

STARLING_VECTOR_CLONES void Denormalize(const float* x, const float* dy, int64_t stride_dy,
                                        const Factors& f, int64_t points, int64_t stride,
                                        int64_t width, float* dx) {
  MapAny<true>(x, dy, stride_dy, f, points, stride, width, dx);
}

// Keeps its input's format. `saved` holds the micro-batch's mean, then its biased variance.
//
// What is fused behind it, an addition and a ReLU, is done piece by piece while the piece lies in
// the nearest cache: forward behind the normalisation, backward (the ReLU's gate) before the sums,
// and once more before the result.
class BatchNorm : public CpuKernel {
 public:
  BatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry,
            const dnnl::engine& engine);

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override;
  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override;

 private:
  // Some points, `stride` apart.
  struct Points {
    const float* at;
    int64_t stride;
  };
  // The gradient behind the fused operators, and where the added value's gradient goes (null: it is
  // not wanted, or there already).
  struct Outer {
    const float* y;
    const float* dy;
    float* added;
  };

  bool fused() const { return geometry_.relu || adds_; }
  // Channels of a group that are the value's.
  int64_t Used(const Group& g) const { return std::min(g.width, channels_ - g.channel); }
  template <typename Fn>
  void ForEachGroup(Fn fn) const;
  // Calls fn(offset in the value, points) for all of a group's points, run by run; where something
  // is fused, piece by piece.
  template <typename Fn>
  void ForEachPiece(const Group& g, Fn fn) const;
  void Measure(const Group& g, const float* x, float* saved) const;
  void GroupForward(const ForwardArgs& args, const float* added, const Group& g) const;
  void GroupBackward(const BackwardArgs& args, const Outer& outer, const Group& g) const;
  // The gradient of what the normalisation gave, in `piece` or where it lies anyway.
  Points Gate(const Group& g, const Outer& outer, int64_t at, int64_t points, float* piece) const;
  void WriteStatistics(const BackwardArgs& args) const;

  const int64_t channels_;
  const bool adds_;
  const std::vector<Group> groups_;
  Staging added_, added_gradient_;  // where the added value has another format
};

BatchNorm::BatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry,
                     const dnnl::engine& engine)
    : CpuKernel(spec, geometry),
      channels_(geometry.inputs),
      adds_(spec.input_shapes.size() == 2),
      groups_(GroupsOf(spec.input_shapes[0], input_format_)) {
  KeepInputFormat();
  if (adds_) {
    const ValueFormat format = spec.input_formats.empty() ? ValueFormat{} : spec.input_formats[1];
    const MemoryDesc added = *DescOf(spec.input_shapes[1], format);
    ScratchPlan plan;
    added_ = StageIn(added, input_desc_, engine, plan);
    added_gradient_ = StageOut(input_desc_, added, engine, plan);
    workspace_bytes_ = plan.size();
  }
  forward_in_place_ok_ = !spec.training;
  if (!spec.training) return;
  backward_in_place_ok_ = true;
  saved_bytes_ = 2 * channels_ * sizeof(float);
  backward_reads_input_[0] = true;
  backward_reads_output_ = geometry.relu;  // y > 0 exactly where the gradient passes
}

template <typename Fn>
void BatchNorm::ForEachGroup(Fn fn) const {
  const int64_t count = static_cast<int64_t>(groups_.size());
  ParallelRanges(spec_.kernel_threads, count, static_cast<int64_t>(output_bytes_ / sizeof(float)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) fn(groups_[i]);
                 });
}

template <typename Fn>
void BatchNorm::ForEachPiece(const Group& g, Fn fn) const {
  const int64_t piece = fused() ? kPieceFloats / g.width : g.points;
  for (int64_t run = 0; run < g.runs; ++run) {
    for (int64_t p = 0; p < g.points; p += piece) {
      fn(g.base + run * g.run_stride + p * g.point_stride, std::min(piece, g.points - p));
    }
  }
}

// One pass about a guess, the mean of the first run's points; where that was far from the mean, so
// that the variance is a small difference, a second one about the mean.
void BatchNorm::Measure(const Group& g, const float* x, float* saved) const {
  const double count = static_cast<double>(g.count());
  const int64_t few = std::min<int64_t>(g.points, 256);
  const Sums first = SumSquares(g, x, Row(), 1, few);
  Row about;
  for (int64_t l = 0; l < g.width; ++l) {
    about.at[l] = static_cast<float>(first.plain[l] / static_cast<double>(few));
  }
  for (bool again : {true, false}) {
    const Sums sums = SumSquares(g, x, about, g.runs, g.points);
    bool far = false;
    for (int64_t l = 0; l < Used(g); ++l) {
      const double beside = sums.plain[l] / count;
      const double variance = std::max(sums.product[l] / count - beside * beside, 0.0);
      far |= beside * beside > 16 * variance;
      const float mean = static_cast<float>(about.at[l] + beside);
      saved[g.channel + l] = mean;
      saved[channels_ + g.channel + l] = static_cast<float>(variance);
      about.at[l] = mean;
    }
    if (!again || !far) return;
  }
}

void BatchNorm::Run(const ForwardArgs& args, const CpuStream& stream) {
  const void* const added = adds_ ? added_.In(args.inputs[1], stream, args.workspace) : nullptr;
  ForEachGroup(
      [&](const Group& g) { GroupForward(args, static_cast<const float*>(added), g); });
}

void BatchNorm::GroupForward(const ForwardArgs& args, const float* added, const Group& g) const {
  const float* const x = static_cast<const float*>(args.inputs[0]);
  float* const y = static_cast<float*>(args.output);
  const float* mean = args.parameters[kMean];
  const float* variance = args.parameters[kVariance];
  if (spec_.training) {
    float* const saved = static_cast<float*>(args.saved);
    Measure(g, x, saved);
    mean = saved;
    variance = saved + channels_;
  }
  Factors f;
  for (int64_t l = 0; l < Used(g); ++l) {
    const int64_t c = g.channel + l;
    f.mean.at[l] = mean[c];
    f.scale.at[l] =
        static_cast<float>(args.parameters[kWeight][c] / std::sqrt(variance[c] + geometry_.epsilon));
    f.offset.at[l] = args.parameters[kBias][c];
  }
  ForEachPiece(g, [&](int64_t at, int64_t points) {
    Normalize(x + at, f, points, g.point_stride, g.width, y + at);
    if (!fused()) return;
    const Rows rows = RowsOf(g, points);
    AddAndRectify(added == nullptr ? nullptr : added + at, geometry_.relu, rows.count, rows.width,
                  g.point_stride, y + at);
  });
}

void BatchNorm::RunBackward(const BackwardArgs& args, const CpuStream& stream) {
  Outer outer = {static_cast<const float*>(args.output),
                 static_cast<const float*>(args.grad_output), nullptr};
  void* const added = adds_ ? args.grad_inputs[1] : nullptr;
  if (added != nullptr) {
    outer.added = static_cast<float*>(added_gradient_.Place(added, args.workspace));
    if (!geometry_.relu) {
      std::memcpy(outer.added, outer.dy, output_bytes_);
      outer.added = nullptr;
    }
  }
  ForEachGroup([&](const Group& g) { GroupBackward(args, outer, g); });
  if (added != nullptr) added_gradient_.Out(added, stream, args.workspace);
  WriteStatistics(args);
}

BatchNorm::Points BatchNorm::Gate(const Group& g, const Outer& outer, int64_t at, int64_t points,
                                  float* piece) const {
  if (!geometry_.relu) return {outer.dy + at, g.point_stride};
  const Rows rows = RowsOf(g, points);
  if (outer.added != nullptr) {
    GateRows(outer.y + at, outer.dy + at, rows.count, rows.width, g.point_stride, outer.added + at,
             g.point_stride);
    return {outer.added + at, g.point_stride};
  }
  GateRows(outer.y + at, outer.dy + at, rows.count, rows.width, g.point_stride, piece, g.width);
  return {piece, g.width};
}

// With n elements in a channel, d = 1 / sqrt(variance + epsilon) and z = (x - mean) * d:
// dx = weight * d * (dy - sum(dy) / n - z * sum(dy * z) / n).
void BatchNorm::GroupBackward(const BackwardArgs& args, const Outer& outer, const Group& g) const {
  const float* const x = static_cast<const float*>(args.inputs[0]);
  const float* const saved = static_cast<const float*>(args.saved);
  const double count = static_cast<double>(g.count());
  alignas(64) float piece[kPieceFloats];
  Factors f;
  std::copy_n(saved + g.channel, Used(g), f.mean.at);
  Sums sums;
  ForEachPiece(g, [&](int64_t at, int64_t points) {
    const Points dy = Gate(g, outer, at, points, piece);
    SumRun(g, dy.at, dy.stride, x + at, Row(), f.mean, points, &sums);
  });
  for (int64_t l = 0; l < Used(g); ++l) {
    const int64_t c = g.channel + l;
    const double d = 1 / std::sqrt(saved[channels_ + c] + geometry_.epsilon);
    if (float* const to = args.grad_parameters[kBias]; to != nullptr) {
      to[c] = static_cast<float>(sums.plain[l]);
    }
    if (float* const to = args.grad_parameters[kWeight]; to != nullptr) {
      to[c] = static_cast<float>(sums.product[l] * d);
    }
    f.offset.at[l] = static_cast<float>(sums.plain[l] / count);
    f.slope.at[l] = static_cast<float>(sums.product[l] * d * d / count);
    f.scale.at[l] = static_cast<float>(args.parameters[kWeight][c] * d);
  }
  float* const dx = static_cast<float*>(args.grad_inputs[0]);
  if (dx == nullptr) return;
  ForEachPiece(g, [&](int64_t at, int64_t points) {
    const Points dy = outer.added != nullptr ? Points{outer.added + at, g.point_stride}
                                             : Gate(g, outer, at, points, piece);
    Denormalize(x + at, dy.at, dy.stride, f, points, g.point_stride, g.width, dx + at);
  });
}

void BatchNorm::WriteStatistics(const BackwardArgs& args) const {
  const float* const saved = static_cast<const float*>(args.saved);
  const float share = static_cast<float>(static_cast<double>(geometry_.batch) /
                                         static_cast<double>(args.global_batch));
  for (int statistic : {0, 1}) {
    float* const contribution = args.grad_parameters[kMean + statistic];
    if (contribution == nullptr) continue;
    for (int64_t c = 0; c < channels_; ++c) {
      contribution[c] = saved[statistic * channels_ + c] * share;
    }
  }
}

}  // namespace

CpuKernelPtr MakeBatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry,
                           const dnnl::engine& engine) {
  return std::make_unique<BatchNorm>(spec, geometry, engine);
}

}  // namespace starling
