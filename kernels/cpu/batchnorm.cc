// Batch norm (Ioffe and Szegedy 2015), with sums in double. A sum in float of tens of thousands of
// values that lie on one side of zero (an image's background) is wrong by 1e-5 or more, and the
// gradients of what comes before are small differences of such sums.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

enum Parameter { kWeight = 0, kBias = 1, kMean = 2, kVariance = 3 };

// A value in any of the CPU's formats: [outer][blocks][points][lanes], where lane l of block b is
// channel b * lanes + l. Lanes beyond the last channel are padding.
struct View {
  int64_t outer, blocks, points, lanes;
  int64_t channels() const { return blocks * lanes; }  // padding included
};

View ViewOf(const Shape& shape, ValueFormat format) {
  const int64_t samples = shape[0], channels = shape[1];
  int64_t points = 1;
  for (size_t i = 2; i < shape.size(); ++i) points *= shape[i];
  switch (format.id) {
    case kBlocked8: return {samples, (channels + 7) / 8, points, 8};
    case kBlocked16: return {samples, (channels + 15) / 16, points, 16};
    case kChannelsLast: return {1, 1, samples * points, channels};
    default: break;
  }
  if (points == 1) return {1, 1, samples, channels};
  return {samples, channels, points, 1};
}

// sum[l] += (a - shift_a)(b - shift_b), or of (a - shift_a) where b is null, over `points` of `lanes`.
STARLING_VECTOR_CLONES void AddLanes(const float* a, const float* shift_a, const float* b,
                                     const float* shift_b, int64_t points, int64_t lanes,
                                     double* sum) {
  for (int64_t p = 0; p < points; ++p, a += lanes) {
    if (b == nullptr) {
      for (int64_t l = 0; l < lanes; ++l) sum[l] += double{a[l] - shift_a[l]};
      continue;
    }
    for (int64_t l = 0; l < lanes; ++l) {
      sum[l] += double{a[l] - shift_a[l]} * double{b[l] - shift_b[l]};
    }
    b += lanes;
  }
}

// The same with one lane: eight sums side by side, and then theirs.
STARLING_VECTOR_CLONES double SumRun(const float* a, float shift_a, const float* b, float shift_b,
                                     int64_t points) {
  constexpr int64_t kWidth = 8;
  double sums[kWidth] = {};
  const int64_t whole = points / kWidth * kWidth;
  for (int64_t p = 0; p < whole; p += kWidth) {
    for (int64_t i = 0; i < kWidth; ++i) {
      const double factor = b == nullptr ? 1.0 : double{b[p + i] - shift_b};
      sums[i] += double{a[p + i] - shift_a} * factor;
    }
  }
  for (int64_t p = whole; p < points; ++p) {
    sums[p - whole] += double{a[p] - shift_a} * (b == nullptr ? 1.0 : double{b[p] - shift_b});
  }
  double sum = 0;
  for (double part : sums) sum += part;
  return sum;
}

// Per channel; see AddLanes.
void Sum(const View& view, const float* a, const float* shift_a, const float* b,
         const float* shift_b, double* sum) {
  std::fill_n(sum, view.channels(), 0.0);
  const int64_t run = view.points * view.lanes;
  for (int64_t n = 0; n < view.outer; ++n) {
    for (int64_t block = 0; block < view.blocks; ++block) {
      const int64_t c = block * view.lanes;
      if (view.lanes == 1) {
        sum[c] += SumRun(a, shift_a[c], b, b == nullptr ? 0 : shift_b[c], view.points);
      } else {
        AddLanes(a, shift_a + c, b, b == nullptr ? nullptr : shift_b + c, view.points, view.lanes,
                 sum + c);
      }
      a += run;
      if (b != nullptr) b += run;
    }
  }
}

// What each channel's elements are scaled by, one array after another.
struct Factors {
  float *mean, *scale, *offset, *slope;
};

// y = (x - mean) * scale + offset.
STARLING_VECTOR_CLONES void Normalize(const float* x, const Factors& f, int64_t points,
                                      int64_t lanes, float* y) {
  if (lanes == 1) {
    const float mean = *f.mean, scale = *f.scale, offset = *f.offset;
    for (int64_t p = 0; p < points; ++p) y[p] = (x[p] - mean) * scale + offset;
    return;
  }
  for (int64_t p = 0; p < points; ++p, x += lanes, y += lanes) {
    for (int64_t l = 0; l < lanes; ++l) y[l] = (x[l] - f.mean[l]) * f.scale[l] + f.offset[l];
  }
}

// dx = (dy - offset - (x - mean) * slope) * scale.
STARLING_VECTOR_CLONES void Denormalize(const float* dy, const float* x, const Factors& f,
                                        int64_t points, int64_t lanes, float* dx) {
  if (lanes == 1) {
    const float mean = *f.mean, scale = *f.scale, offset = *f.offset, slope = *f.slope;
    for (int64_t p = 0; p < points; ++p) dx[p] = (dy[p] - offset - (x[p] - mean) * slope) * scale;
    return;
  }
  for (int64_t p = 0; p < points; ++p, dy += lanes, x += lanes, dx += lanes) {
    for (int64_t l = 0; l < lanes; ++l) {
      dx[l] = (dy[l] - f.offset[l] - (x[l] - f.mean[l]) * f.slope[l]) * f.scale[l];
    }
  }
}

// Calls fn(offset of the run, its factors) for each run of points * lanes elements.
template <typename Fn>
void ForEachRun(const View& view, const Factors& f, Fn fn) {
  int64_t at = 0;
  for (int64_t n = 0; n < view.outer; ++n) {
    for (int64_t c = 0; c < view.channels(); c += view.lanes) {
      fn(at, Factors{f.mean + c, f.scale + c, f.offset + c, f.slope + c});
      at += view.points * view.lanes;
    }
  }
}

// Keeps its input's format. `saved` holds the micro-batch's mean, then its biased variance.
class BatchNorm : public CpuKernel {
 public:
  BatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry);

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override;
  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override;

 private:
  double* Sums(void* workspace, int index) const {
    return reinterpret_cast<double*>(static_cast<char*>(workspace) + sums_[index]);
  }
  // All zero, padding included: what pads the input then pads the output.
  Factors ZeroFactors(void* workspace) const;
  void Measure(const float* x, float* saved, const Factors& zero, void* workspace) const;
  void WriteStatistics(const BackwardArgs& args) const;

  const View view_;
  const int64_t channels_;
  const double count_;  // of elements in a channel
  size_t sums_[2] = {}, factors_ = 0;
};

BatchNorm::BatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry)
    : CpuKernel(spec, geometry),
      view_(ViewOf(spec.input_shapes[0], input_format_)),
      channels_(geometry.inputs),
      count_(static_cast<double>(view_.outer * view_.points)) {
  KeepInputFormat();
  ScratchPlan plan;
  for (size_t& sum : sums_) sum = plan.Take(view_.channels() * sizeof(double));
  factors_ = plan.Take(4 * view_.channels() * sizeof(float));
  workspace_bytes_ = plan.size();
  if (!spec.training) return;
  saved_bytes_ = 2 * channels_ * sizeof(float);
  backward_reads_input_[0] = true;
}

Factors BatchNorm::ZeroFactors(void* workspace) const {
  float* const all = reinterpret_cast<float*>(static_cast<char*>(workspace) + factors_);
  const int64_t stride = view_.channels();
  std::fill_n(all, 4 * stride, 0.0f);
  return {all, all + stride, all + 2 * stride, all + 3 * stride};
}

// The mean first, and then the squares of what lies beside it.
void BatchNorm::Measure(const float* x, float* saved, const Factors& f, void* workspace) const {
  double* const sum = Sums(workspace, 0);
  Sum(view_, x, f.mean, nullptr, nullptr, sum);
  for (int64_t c = 0; c < channels_; ++c) f.mean[c] = static_cast<float>(sum[c] / count_);
  std::copy_n(f.mean, channels_, saved);
  Sum(view_, x, f.mean, x, f.mean, sum);
  for (int64_t c = 0; c < channels_; ++c) {
    saved[channels_ + c] = static_cast<float>(sum[c] / count_);
  }
}

void BatchNorm::Run(const ForwardArgs& args, const CpuStream&) {
  const float* const x = static_cast<const float*>(args.inputs[0]);
  const Factors f = ZeroFactors(args.workspace);
  const float* mean = args.parameters[kMean];
  const float* variance = args.parameters[kVariance];
  if (spec_.training) {
    float* const saved = static_cast<float*>(args.saved);
    Measure(x, saved, f, args.workspace);
    mean = saved;
    variance = saved + channels_;
  }
  for (int64_t c = 0; c < channels_; ++c) {
    f.mean[c] = mean[c];
    f.scale[c] =
        static_cast<float>(args.parameters[kWeight][c] / std::sqrt(variance[c] + geometry_.epsilon));
    f.offset[c] = args.parameters[kBias][c];
  }
  float* const y = static_cast<float*>(args.output);
  ForEachRun(view_, f, [&](int64_t at, const Factors& run) {
    Normalize(x + at, run, view_.points, view_.lanes, y + at);
  });
}

// With n elements in a channel, d = 1 / sqrt(variance + epsilon) and z = (x - mean) * d:
// dx = weight * d * (dy - sum(dy) / n - z * sum(dy * z) / n).
void BatchNorm::RunBackward(const BackwardArgs& args, const CpuStream&) {
  const float* const x = static_cast<const float*>(args.inputs[0]);
  const float* const dy = static_cast<const float*>(args.grad_output);
  const float* const saved = static_cast<const float*>(args.saved);
  const Factors f = ZeroFactors(args.workspace);
  double* const plain = Sums(args.workspace, 0);
  double* const product = Sums(args.workspace, 1);
  Sum(view_, dy, f.offset, nullptr, nullptr, plain);  // the offsets are still zero
  std::copy_n(saved, channels_, f.mean);
  Sum(view_, dy, f.offset, x, f.mean, product);
  for (int64_t c = 0; c < channels_; ++c) {
    const double d = 1 / std::sqrt(saved[channels_ + c] + geometry_.epsilon);
    if (float* const to = args.grad_parameters[kBias]; to != nullptr) {
      to[c] = static_cast<float>(plain[c]);
    }
    if (float* const to = args.grad_parameters[kWeight]; to != nullptr) {
      to[c] = static_cast<float>(product[c] * d);
    }
    f.offset[c] = static_cast<float>(plain[c] / count_);
    f.slope[c] = static_cast<float>(product[c] * d * d / count_);
    f.scale[c] = static_cast<float>(args.parameters[kWeight][c] * d);
  }
  if (float* const dx = static_cast<float*>(args.grad_inputs[0]); dx != nullptr) {
    ForEachRun(view_, f, [&](int64_t at, const Factors& run) {
      Denormalize(dy + at, x + at, run, view_.points, view_.lanes, dx + at);
    });
  }
  WriteStatistics(args);
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

CpuKernelPtr MakeBatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry) {
  return std::make_unique<BatchNorm>(spec, geometry);
}

}  // namespace starling
