// Attention as matrix products, all heads of a sample at once: for float, and where cuDNN has no
// attention of its own (fused_attention.cc). Even for two-byte values, scores and their gradients
// stay in float until after the softmax, because they are differences of large numbers.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/cuda/cublas.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/rows.h"

namespace starling::cuda {
namespace {

// The memory layout of each head's [T, width] or [T, T] matrix.
struct HeadMatrices {
  int64_t row = 0;   // from one row to the next, in elements
  int64_t step = 0;  // from one head to the next
  Element element = Element::kFloat;
};

// softmax(Q K^T / sqrt(width)) V. T x T matrices lie in the workspace, for one sample; backward
// recomputes the weights, so that nothing of that size is kept.
class AttentionKernel : public CudaKernel {
 public:
  AttentionKernel(const OperatorSpec& spec, const OperatorGeometry& g, const FormatPlan& plan,
                  const absl::Status& refusal)
      : CudaKernel(spec, g, plan),
        width_(g.inputs / g.heads),
        input_row_(g.packed ? 3 * g.inputs : g.inputs),
        scale_(1 / std::sqrt(static_cast<float>(width_))) {
    if (element() == Element::kFloat) return;  // nothing is faster for it
    slower_because_ = absl::StrCat("attention by products of matrices: ", refusal.message());
  }

  absl::Status Prepare(const std::shared_ptr<const CublasLt>& library) {
    const int64_t t = geometry_.rows;
    const HeadMatrices in = {input_row_, width_, element()};
    const HeadMatrices out = {geometry_.inputs, width_, element()};
    const HeadMatrices weights = {t, t * t, element()};
    const HeadMatrices scores = {t, t * t, Element::kFloat};
    const GemmSpec products = {.m = t, .n = t, .k = width_, .transpose_b = true};
    const GemmSpec sums = {.m = t, .n = width_, .k = t};
    const GemmSpec turned = {.m = t, .n = width_, .k = t, .transpose_a = true};
    GemmSpec scaled = products;
    scaled.alpha = scale_;
    STARLING_RETURN_IF_ERROR(Make(library, scaled, in, in, scores, &scores_));
    STARLING_RETURN_IF_ERROR(Make(library, sums, weights, in, out, &output_));
    Pieces work;
    const auto square = static_cast<size_t>(geometry_.heads * t * t);
    float_ = work.Take(square * sizeof(float));
    weights_ = work.Take(square * ElementBytes(element()));
    if (spec_.training) {
      score_gradient_ = work.Take(square * ElementBytes(element()));
      STARLING_RETURN_IF_ERROR(Make(library, products, out, in, scores, &weight_gradient_));
      STARLING_RETURN_IF_ERROR(Make(library, turned, weights, out, in, &value_gradient_));
      STARLING_RETURN_IF_ERROR(Make(library, sums, weights, in, in, &query_gradient_));
      STARLING_RETURN_IF_ERROR(Make(library, turned, weights, in, in, &key_gradient_));
      backward_reads_input_.assign(spec_.input_shapes.size(), true);
    }
    scratch_ = work.Take(scratch_bytes_);
    workspace_bytes_ = work.size();
    return absl::OkStatus();
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    for (int64_t n = 0; n < geometry_.batch; ++n) {
      STARLING_RETURN_IF_ERROR(Weights(args.inputs, n, args.workspace, stream));
      STARLING_RETURN_IF_ERROR(
          output_->Run(PieceAt(args.workspace, weights_), Input(args.inputs, kValue, n),
                       At(args.output, OutputIndex(n)), nullptr, Scratch(args.workspace), stream));
    }
    return absl::OkStatus();
  }

  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    for (int64_t n = 0; n < geometry_.batch; ++n) {
      STARLING_RETURN_IF_ERROR(BackwardOf(args, n, stream));
    }
    return absl::OkStatus();
  }

 private:
  enum Which { kQuery = 0, kKey = 1, kValue = 2 };

  absl::Status Make(const std::shared_ptr<const CublasLt>& library, GemmSpec spec,
                    const HeadMatrices& a, const HeadMatrices& b, const HeadMatrices& d,
                    std::unique_ptr<Gemm>* gemm) {
    spec.row_a = a.row;
    spec.step_a = a.step;
    spec.row_b = b.row;
    spec.step_b = b.step;
    spec.row_d = d.row;
    spec.step_d = d.step;
    spec.tf32 = spec_.tf32;
    spec.batch = geometry_.heads;
    spec.input = a.element;
    spec.output = d.element;
    spec.alignment = spec.alignment_d = Alignment();
    STARLING_ASSIGN_OR_RETURN(*gemm, Gemm::Create(library, spec));
    scratch_bytes_ = std::max(scratch_bytes_, (*gemm)->workspace_bytes());
    return absl::OkStatus();
  }

  // Alignment in bytes of products' operands: where samples, heads and parts of packed rows start.
  int Alignment() const {
    const int bytes = ElementBytes(element());
    const auto rest = [bytes](int64_t elements) { return static_cast<int>(elements * bytes % 16); };
    return std::gcd(std::gcd(16, rest(width_)), rest(geometry_.rows * geometry_.inputs));
  }

  // Sample n's query, key or value.
  const void* Input(absl::Span<const void* const> inputs, Which which, int64_t n) const {
    return At(inputs[geometry_.packed ? 0 : which], InputIndex(which, n));
  }
  // Its gradient; null: not wanted.
  void* InputGradient(absl::Span<void* const> gradients, Which which, int64_t n) const {
    void* const whole = gradients[geometry_.packed ? 0 : which];
    return whole == nullptr ? nullptr : At(whole, InputIndex(which, n));
  }
  int64_t InputIndex(Which which, int64_t n) const {
    return n * geometry_.rows * input_row_ + (geometry_.packed ? which * geometry_.inputs : 0);
  }
  int64_t OutputIndex(int64_t n) const { return n * geometry_.rows * geometry_.inputs; }
  void* At(void* value, int64_t index) const {
    return PieceAt(value, static_cast<size_t>(index) * ElementBytes(element()));
  }
  const void* At(const void* value, int64_t index) const {
    return PieceAt<char>(value, static_cast<size_t>(index) * ElementBytes(element()));
  }
  void* Scratch(void* workspace) const { return PieceAt(workspace, scratch_); }

  // softmax(scale Q K^T) for sample n.
  absl::Status Weights(absl::Span<const void* const> inputs, int64_t n, void* workspace,
                       CudaStream& stream) {
    float* const scores = PieceAt<float>(workspace, float_);
    STARLING_RETURN_IF_ERROR(scores_->Run(Input(inputs, kQuery, n), Input(inputs, kKey, n), scores,
                                          nullptr, Scratch(workspace), stream));
    return STARLING_CUDA_STATUS(
        LaunchSoftmax(scores, geometry_.causal, geometry_.rows, geometry_.heads * geometry_.rows,
                      geometry_.rows, element(), PieceAt(workspace, weights_), stream.get()));
  }

  absl::Status BackwardOf(const BackwardArgs& args, int64_t n, CudaStream& stream) {
    void* const weights = PieceAt(args.workspace, weights_);
    float* const weight_gradient = PieceAt<float>(args.workspace, float_);
    void* const score_gradient = PieceAt(args.workspace, score_gradient_);
    void* const scratch = Scratch(args.workspace);
    const void* const dy = At(args.grad_output, OutputIndex(n));
    void* const dq = InputGradient(args.grad_inputs, kQuery, n);
    void* const dk = InputGradient(args.grad_inputs, kKey, n);
    void* const dv = InputGradient(args.grad_inputs, kValue, n);
    if (dq == nullptr && dk == nullptr && dv == nullptr) return absl::OkStatus();
    STARLING_RETURN_IF_ERROR(Weights(args.inputs, n, args.workspace, stream));
    if (dv != nullptr) {  // P^T dY
      STARLING_RETURN_IF_ERROR(value_gradient_->Run(weights, dy, dv, nullptr, scratch, stream));
    }
    if (dq == nullptr && dk == nullptr) return absl::OkStatus();
    // dP = dY V^T; dS from it and P; dQ = dS K, dK = dS^T Q.
    STARLING_RETURN_IF_ERROR(weight_gradient_->Run(dy, Input(args.inputs, kValue, n),
                                                   weight_gradient, nullptr, scratch, stream));
    STARLING_RETURN_IF_CUDA_ERROR(LaunchSoftmaxGradient(
        element(), weights, weight_gradient, scale_, geometry_.heads * geometry_.rows,
        geometry_.rows, score_gradient, stream.get()));
    if (dq != nullptr) {
      STARLING_RETURN_IF_ERROR(query_gradient_->Run(score_gradient, Input(args.inputs, kKey, n), dq,
                                                    nullptr, scratch, stream));
    }
    if (dk == nullptr) return absl::OkStatus();
    return key_gradient_->Run(score_gradient, Input(args.inputs, kQuery, n), dk, nullptr, scratch,
                              stream);
  }

  const int64_t width_;      // per head
  const int64_t input_row_;  // elements from one position's query to the next
  const float scale_;
  size_t scratch_bytes_ = 0;  // for one product at a time
  // In the workspace: scores, later the weights' gradients, in float; weights; scores' gradients.
  size_t float_ = 0, weights_ = 0, score_gradient_ = 0, scratch_ = 0;
  std::unique_ptr<Gemm> scores_, output_;
  std::unique_ptr<Gemm> weight_gradient_, value_gradient_, query_gradient_, key_gradient_;
};

absl::StatusOr<CudaKernelPtr> MakeAttention(const OperatorSpec& spec,
                                            const OperatorGeometry& geometry,
                                            const FormatPlan& plan, const Libraries& libraries) {
  absl::StatusOr<CudaKernelPtr> fused = kMakeFusedAttention(spec, geometry, plan, libraries);
  if (!absl::IsUnimplemented(fused.status())) return fused;
  auto kernel = std::make_unique<AttentionKernel>(spec, geometry, plan, fused.status());
  STARLING_RETURN_IF_ERROR(kernel->Prepare(libraries.products));
  return CudaKernelPtr(std::move(kernel));
}

}  // namespace

const MakeCudaKernel kMakeAttention = MakeAttention;

}  // namespace starling::cuda
