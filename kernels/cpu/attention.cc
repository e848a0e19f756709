// Scaled dot-product attention (Vaswani et al. 2017). One head at a time, a block of queries at a
// time, so that a block's T weights per query stay in the cache and no T x T matrix is stored:
// Backward recomputes the weights from their row's maximum and sum, which is all that Forward saves
// (as in FlashAttention, Dao et al. 2022). Keys that no query of a block sees are skipped.
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

constexpr int64_t kQueryBlock = 64;

// p[i] *= (d[i] - mean) * scale.
STARLING_VECTOR_CLONES void SoftmaxGradient(const float* d, float mean, float scale, float* p,
                                            int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) p[i] *= (d[i] - mean) * scale;
}

// A row-major matrix whose rows are `stride` floats apart.
struct Matrix {
  float* data;
  int64_t stride;
};

// Its rows starting at `row`.
Matrix From(Matrix m, int64_t row) { return {m.data + row * m.stride, m.stride}; }

// c = alpha op(a) op(b) + beta c, where c is m x n and each element sums k products.
void Multiply(char op_a, char op_b, int64_t m, int64_t n, int64_t k, float alpha, Matrix a,
              Matrix b, float beta, Matrix c) {
  const dnnl_status_t status = dnnl_sgemm(op_a, op_b, m, n, k, alpha, a.data, a.stride, b.data,
                                          b.stride, beta, c.data, c.stride);
  if (status != dnnl_success) throw dnnl::error(status, "sgemm");
}

class Attention : public CpuKernel {
 public:
  Attention(const OperatorSpec& spec, const OperatorGeometry& geometry);

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override;
  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override;

 private:
  // Keys that the queries before `end` see.
  int64_t Keys(int64_t end) const { return geometry_.causal ? end : length_; }
  // A head's part of a value whose rows are `stride` floats apart and start `skip` floats in. A
  // null value gives a null part.
  Matrix HeadOf(const void* value, int64_t head, int64_t stride, int64_t skip) const {
    if (value == nullptr) return {nullptr, stride};
    float* const data = const_cast<float*>(static_cast<const float*>(value));
    return {
        data + head / geometry_.heads * length_ * stride + skip + head % geometry_.heads * width_,
        stride};
  }
  Matrix HeadOf(const void* output, int64_t head) const {
    return HeadOf(output, head, features_, 0);
  }
  // Likewise for query (0), key (1) or value (2), which are separate or packed side by side.
  template <typename Values>
  Matrix HeadOf(const Values& inputs, int which, int64_t head) const {
    return geometry_.packed ? HeadOf(inputs[0], head, 3 * features_, which * features_)
                            : HeadOf(inputs[which], head);
  }
  // Calls fn(head of the micro-batch, a thread's scratch).
  template <typename Fn>
  void ForEachHead(void* workspace, Fn fn) const;
  // Turns `row`'s scores into weights: exp(score - maximum), zero for unseen keys.
  void Exponentiate(int64_t query, int64_t keys, float maximum, float* row) const;
  void HeadForward(const ForwardArgs& args, int64_t head, float* scratch) const;
  void HeadBackward(const BackwardArgs& args, int64_t head, float* scratch) const;

  const int64_t length_, features_, width_;
  const int64_t block_;  // queries
  const float scale_;
  size_t scratch_bytes_ = 0;  // per thread
};

Attention::Attention(const OperatorSpec& spec, const OperatorGeometry& geometry)
    : CpuKernel(spec, geometry),
      length_(geometry.rows),
      features_(geometry.inputs),
      width_(geometry.inputs / geometry.heads),
      block_(std::min(kQueryBlock, geometry.rows)),
      scale_(static_cast<float>(1 / std::sqrt(static_cast<double>(width_)))) {
  ScratchPlan plan;
  plan.Take(block_ * length_ * sizeof(float));
  if (spec.training) {
    plan.Take(block_ * length_ * sizeof(float));
    saved_bytes_ = 2 * geometry.batch * geometry.heads * length_ * sizeof(float);
    backward_reads_input_.assign(spec.input_shapes.size(), true);
  }
  scratch_bytes_ = plan.size();
  workspace_bytes_ = spec.kernel_threads * scratch_bytes_;
}

template <typename Fn>
void Attention::ForEachHead(void* workspace, Fn fn) const {
  const int64_t heads = geometry_.batch * geometry_.heads;
  const int64_t threads = std::min<int64_t>(spec_.kernel_threads, heads);
  std::atomic<int> failure = dnnl_success;
  ParallelRanges(threads, threads, heads * length_ * length_, [&](int64_t begin, int64_t end) {
    float* const scratch =
        reinterpret_cast<float*>(static_cast<char*>(workspace) + begin * scratch_bytes_);
    try {
      for (int64_t head = heads * begin / threads; head < heads * end / threads; ++head) {
        fn(head, scratch);
      }
    } catch (const dnnl::error& error) {
      failure = error.status;
    }
  });
  if (failure != dnnl_success) {
    throw dnnl::error(static_cast<dnnl_status_t>(failure.load()), "sgemm");
  }
}

void Attention::Exponentiate(int64_t query, int64_t keys, float maximum, float* row) const {
  const int64_t seen = geometry_.causal ? query + 1 : keys;
  ExpOf(row, maximum, row, seen);
  std::fill(row + seen, row + keys, 0.0f);
}

void Attention::Run(const ForwardArgs& args, const CpuStream&) {
  ForEachHead(args.workspace,
              [&](int64_t head, float* scratch) { HeadForward(args, head, scratch); });
}

void Attention::HeadForward(const ForwardArgs& args, int64_t head, float* scores) const {
  const Matrix query = HeadOf(args.inputs, 0, head), key = HeadOf(args.inputs, 1, head),
               value = HeadOf(args.inputs, 2, head), output = HeadOf(args.output, head);
  float* const saved =
      spec_.training ? static_cast<float*>(args.saved) + 2 * head * length_ : nullptr;
  for (int64_t begin = 0; begin < length_; begin += block_) {
    const int64_t end = std::min(begin + block_, length_), keys = Keys(end);
    Multiply('N', 'T', end - begin, keys, width_, scale_, From(query, begin), key, 0,
             {scores, keys});
    for (int64_t t = begin; t < end; ++t) {
      float* const row = scores + (t - begin) * keys;
      const float maximum = MaximumOf(row, geometry_.causal ? t + 1 : keys);
      Exponentiate(t, keys, maximum, row);
      const float inverse = 1 / SumOf(row, keys);
      ScaleBy(inverse, row, keys);
      if (saved == nullptr) continue;
      saved[2 * t] = maximum;
      saved[2 * t + 1] = inverse;
    }
    Multiply('N', 'N', end - begin, width_, keys, 1, {scores, keys}, value, 0, From(output, begin));
  }
}

void Attention::RunBackward(const BackwardArgs& args, const CpuStream&) {
  ForEachHead(args.workspace,
              [&](int64_t head, float* scratch) { HeadBackward(args, head, scratch); });
}

// With the weights P = softmax(S), S = scale Q K^T and dP = dO V^T: dV = P^T dO, dS = P (dP - sum
// of a row of P dP), dQ = scale dS K, dK = scale dS^T Q. The last block of queries goes first: it
// sees every key, so it initialises the sums of dK and dV.
void Attention::HeadBackward(const BackwardArgs& args, int64_t head, float* weights) const {
  const Matrix query = HeadOf(args.inputs, 0, head), key = HeadOf(args.inputs, 1, head),
               value = HeadOf(args.inputs, 2, head), dy = HeadOf(args.grad_output, head),
               dquery = HeadOf(args.grad_inputs, 0, head), dkey = HeadOf(args.grad_inputs, 1, head),
               dvalue = HeadOf(args.grad_inputs, 2, head);
  const float* const saved = static_cast<const float*>(args.saved) + 2 * head * length_;
  float* const slopes = weights + block_ * length_;
  for (int64_t begin = (length_ - 1) / block_ * block_; begin >= 0; begin -= block_) {
    const int64_t end = std::min(begin + block_, length_), keys = Keys(end), rows = end - begin;
    const float beta = end == length_ ? 0 : 1;
    Multiply('N', 'T', rows, keys, width_, scale_, From(query, begin), key, 0, {weights, keys});
    for (int64_t t = begin; t < end; ++t) {
      float* const row = weights + (t - begin) * keys;
      Exponentiate(t, keys, saved[2 * t], row);
      ScaleBy(saved[2 * t + 1], row, keys);
    }
    if (dvalue.data != nullptr) {
      Multiply('T', 'N', keys, width_, rows, 1, {weights, keys}, From(dy, begin), beta, dvalue);
    }
    if (dquery.data == nullptr && dkey.data == nullptr) continue;
    Multiply('N', 'T', rows, keys, width_, 1, From(dy, begin), value, 0, {slopes, keys});
    for (int64_t i = 0; i < rows; ++i) {
      float* const row = weights + i * keys;
      const float mean = SumOfProducts(row, slopes + i * keys, keys);
      SoftmaxGradient(slopes + i * keys, mean, scale_, row, keys);
    }
    if (dquery.data != nullptr) {
      Multiply('N', 'N', rows, width_, keys, 1, {weights, keys}, key, 0, From(dquery, begin));
    }
    if (dkey.data != nullptr) {
      Multiply('T', 'N', keys, width_, rows, 1, {weights, keys}, From(query, begin), beta, dkey);
    }
  }
}

}  // namespace

const MakeCpuKernel kMakeAttention = MakeKernel<Attention>;

}  // namespace starling
