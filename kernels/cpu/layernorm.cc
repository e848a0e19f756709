// Layer norm (Ba et al. 2016). A row fits the L1 cache, so it is read from there three times: for
// its mean, for its variance around that mean, and for the result.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

// Rows whose contributions to the weight's gradient are summed together, independently of the
// threads, so that the sums are always the same.
constexpr int64_t kChunkRows = 64;

STARLING_VECTOR_CLONES void NormalizeRow(const float* x, float mean, float inverse,
                                         const float* weight, const float* bias, float* y,
                                         int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
}

// Adds a row to the weight's and bias's gradients; outputs dy * weight and the normalised row.
STARLING_VECTOR_CLONES void SumRow(const float* x, const float* dy, float mean, float inverse,
                                   const float* weight, float* dweight, float* dbias,
                                   float* weighted, float* normal, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float z = (x[i] - mean) * inverse;
    normal[i] = z;
    weighted[i] = dy[i] * weight[i];
    dweight[i] += dy[i] * z;
    dbias[i] += dy[i];
  }
}

STARLING_VECTOR_CLONES void GradientRow(const float* weighted, const float* normal, float mean,
                                        float slope, float inverse, float* dx, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) dx[i] = (weighted[i] - mean - normal[i] * slope) * inverse;
}

STARLING_VECTOR_CLONES void AddToDoubles(const float* from, double* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += double{from[i]};
}

// `saved` holds each row's mean and 1 / sqrt(variance + epsilon).
class LayerNorm : public CpuKernel {
 public:
  LayerNorm(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry),
        width_(geometry.inputs),
        chunks_((geometry.rows + kChunkRows - 1) / kChunkRows) {
    backward_in_place_ok_ = true;
    forward_in_place_ok_ = !spec.training;
    if (!spec.training) return;
    backward_reads_input_[0] = true;
    saved_bytes_ = 2 * geometry.rows * sizeof(float);
    ScratchPlan plan;
    sums_ = plan.Take(2 * width_ * sizeof(double));
    chunk_bytes_ = 4 * width_ * sizeof(float);
    partial_ = plan.Take(chunks_ * chunk_bytes_);
    workspace_bytes_ = plan.size();
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    const float* const x = static_cast<const float*>(args.inputs[0]);
    float* const y = static_cast<float*>(args.output);
    float* const saved = spec_.training ? static_cast<float*>(args.saved) : nullptr;
    const double count = static_cast<double>(width_);
    ParallelRanges(spec_.kernel_threads, geometry_.rows, geometry_.rows * width_,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t r = begin; r < end; ++r) {
                       const float* const row = x + r * width_;
                       const float mean = static_cast<float>(SumOf(row, width_) / count);
                       const double variance = SumOfSquares(row, mean, width_) / count;
                       const float inverse =
                           static_cast<float>(1 / std::sqrt(variance + geometry_.epsilon));
                       NormalizeRow(row, mean, inverse, args.parameters[0], args.parameters[1],
                                    y + r * width_, width_);
                       if (saved == nullptr) continue;
                       saved[2 * r] = mean;
                       saved[2 * r + 1] = inverse;
                     }
                   });
  }

  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    ParallelRanges(spec_.kernel_threads, chunks_, geometry_.rows * width_,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t chunk = begin; chunk < end; ++chunk) Chunk(args, chunk);
                   });
    double* const sums = reinterpret_cast<double*>(static_cast<char*>(args.workspace) + sums_);
    std::fill_n(sums, 2 * width_, 0.0);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      AddToDoubles(Partial(args, chunk), sums, 2 * width_);
    }
    for (int i : {0, 1}) {
      float* const to = args.grad_parameters[i];
      if (to != nullptr) std::copy_n(sums + i * width_, width_, to);
    }
  }

 private:
  // A chunk's gradients of the weight and bias, and two rows of scratch.
  float* Partial(const BackwardArgs& args, int64_t chunk) const {
    char* const at = static_cast<char*>(args.workspace) + partial_;
    return reinterpret_cast<float*>(at + chunk * chunk_bytes_);
  }

  // With d = dy * weight: dx = (d - mean(d) - z * mean(d * z)) / sqrt(variance + epsilon).
  void Chunk(const BackwardArgs& args, int64_t chunk) const {
    float* const partial = Partial(args, chunk);
    float* const weighted = partial + 2 * width_;
    float* const normal = partial + 3 * width_;
    std::fill_n(partial, 2 * width_, 0.0f);
    const float* const saved = static_cast<const float*>(args.saved);
    const float count = static_cast<float>(width_);
    const int64_t end = std::min((chunk + 1) * kChunkRows, geometry_.rows);
    for (int64_t r = chunk * kChunkRows; r < end; ++r) {
      const float mean = saved[2 * r], inverse = saved[2 * r + 1];
      SumRow(static_cast<const float*>(args.inputs[0]) + r * width_,
             static_cast<const float*>(args.grad_output) + r * width_, mean, inverse,
             args.parameters[0], partial, partial + width_, weighted, normal, width_);
      if (args.grad_inputs[0] == nullptr) continue;
      GradientRow(weighted, normal, SumOf(weighted, width_) / count,
                  SumOfProducts(weighted, normal, width_) / count, inverse,
                  static_cast<float*>(args.grad_inputs[0]) + r * width_, width_);
    }
  }

  const int64_t width_, chunks_;
  size_t sums_ = 0, partial_ = 0, chunk_bytes_ = 0;
};

}  // namespace

const MakeCpuKernel kMakeLayerNorm = MakeKernel<LayerNorm>;

}  // namespace starling
