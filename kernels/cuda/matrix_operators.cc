// Linear and matmul. cuBLASLt computes the products in the values' type, with sums in float; for
// float no tensor core rounds anything unless tf32 allows it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/movement.h"
#include "kernels/cuda/rows.h"

namespace starling::cuda {
namespace {

// Parameters may lie at any address. Copied to `pieces` of memory to be aligned and of the values'
// type; used in place if they are both.
class StagedParameter {
 public:
  // Followed by `padding` zeros, only if `element` is not float.
  StagedParameter(int64_t count, int64_t padding, Element element, Pieces& pieces)
      : count_(count),
        padding_(padding),
        element_(element),
        offset_(pieces.Take((count + padding) * ElementBytes(element))) {}

  absl::StatusOr<const void*> In(const float* parameter, void* memory, CudaStream& stream) const {
    if (element_ == Element::kFloat && IsAlignedForProducts(parameter)) {
      return static_cast<const void*>(parameter);
    }
    void* const place = PieceAt(memory, offset_);
    STARLING_RETURN_IF_CUDA_ERROR(
        LaunchCast(Element::kFloat, parameter, element_, place, count_, stream.get()));
    if (padding_ > 0) {
      const size_t element_bytes = ElementBytes(element_);
      STARLING_RETURN_IF_CUDA_ERROR(
          cudaMemsetAsync(static_cast<char*>(place) + count_ * element_bytes, 0,
                          padding_ * element_bytes, stream.get()));
    }
    return static_cast<const void*>(place);
  }
  // Where In has put it.
  const void* Staged(const void* memory) const { return PieceAt<char>(memory, offset_); }

 private:
  const int64_t count_, padding_;
  const Element element_;
  const size_t offset_;
};

// Optionally followed by GELU: in cuBLASLt's epilogue if it has that, else in a separate kernel.
// Training keeps GELU's input, the sum, in `saved`; backward overwrites it with its gradient.
// Padded outputs are those of further features whose weights and biases are zero; they are zero,
// too, if the input is finite.
class LinearKernel : public CudaKernel {
 public:
  LinearKernel(const OperatorSpec& spec, const OperatorGeometry& g, const FormatPlan& plan)
      : CudaKernel(spec, g, plan),
        features_(RowStride(g.outputs, plan.output)),
        weight_(g.outputs * g.inputs, (features_ - g.outputs) * g.inputs, plan.output.element,
                keeps_weight() ? saved_ : work_),
        bias_(g.bias ? g.outputs : 0, g.bias ? features_ - g.outputs : 0, plan.output.element,
              work_),
        columns_(PlanColumns(g.rows, features_)) {}

  absl::Status Prepare(const Libraries& libraries) {
    const std::shared_ptr<const CublasLt>& library = libraries.products;
    const int64_t rows = geometry_.rows, in = geometry_.inputs, out = geometry_.outputs;
    GemmSpec forward = {.m = rows, .n = features_, .k = in, .transpose_b = true};
    forward.input = forward.output = element();
    forward.bias = geometry_.bias;
    forward.tf32 = spec_.tf32;
    STARLING_RETURN_IF_ERROR(PrepareForward(library, forward));
    size_t scratch_bytes = forward_->workspace_bytes();
    if (spec_.training) {
      GemmSpec input = {.m = rows, .n = in, .k = features_};
      input.input = input.output = element();
      input.tf32 = spec_.tf32;
      STARLING_ASSIGN_OR_RETURN(input_gradient_, Gemm::Create(library, input));
      GemmSpec weight = {.m = features_, .n = in, .k = rows, .transpose_a = true};
      weight.input = element();
      weight.tf32 = spec_.tf32;
      STARLING_ASSIGN_OR_RETURN(weight_gradient_, Gemm::Create(library, weight));
      weight.alignment_d = sizeof(float);
      STARLING_ASSIGN_OR_RETURN(weight_gradient_anywhere_, Gemm::Create(library, weight));
      scratch_bytes = std::max(
          {scratch_bytes, input_gradient_->workspace_bytes(), weight_gradient_->workspace_bytes(),
           weight_gradient_anywhere_->workspace_bytes(), columns_.workspace_bytes()});
      backward_reads_input_[0] = true;
      if (geometry_.gelu) sum_ = saved_.Take(output_bytes_);
      saved_bytes_ = saved_.size();
      if (features_ != out) padded_gradient_ = work_.Take(features_ * in * sizeof(float));
    }
    scratch_ = work_.Take(scratch_bytes);
    workspace_bytes_ = work_.size();
    return absl::OkStatus();
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    STARLING_ASSIGN_OR_RETURN(
        const void* const weight,
        weight_.In(args.parameters[0], keeps_weight() ? args.saved : args.workspace, stream));
    const void* bias = nullptr;
    if (geometry_.bias) {
      STARLING_ASSIGN_OR_RETURN(bias, bias_.In(args.parameters[1], args.workspace, stream));
    }
    void* const scratch = PieceAt(args.workspace, scratch_);
    if (!geometry_.gelu) {
      return forward_->Run(args.inputs[0], weight, args.output, bias, scratch, stream);
    }
    if (gelu_in_epilogue_) {
      return forward_->Run(args.inputs[0], weight, args.output, bias, scratch, stream,
                           spec_.training ? PieceAt(args.saved, sum_) : nullptr);
    }
    void* const sum = spec_.training ? PieceAt(args.saved, sum_) : args.output;
    STARLING_RETURN_IF_ERROR(forward_->Run(args.inputs[0], weight, sum, bias, scratch, stream));
    return STARLING_CUDA_STATUS(
        LaunchActivation(kGelu, element(), sum, args.output, output_count(), stream.get()));
  }

  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    void* const scratch = PieceAt(args.workspace, scratch_);
    const void* gradient = args.grad_output;  // the sum's gradient
    if (geometry_.gelu) {
      void* const sum = PieceAt(args.saved, sum_);
      STARLING_RETURN_IF_CUDA_ERROR(LaunchActivationGradient(kGelu, element(), sum, gradient, sum,
                                                             output_count(), stream.get()));
      gradient = sum;
    }
    if (args.grad_inputs[0] != nullptr) {
      const void* weight = nullptr;
      if (keeps_weight()) {
        weight = weight_.Staged(args.saved);
      } else {
        STARLING_ASSIGN_OR_RETURN(weight, weight_.In(args.parameters[0], args.workspace, stream));
      }
      STARLING_RETURN_IF_ERROR(
          input_gradient_->Run(gradient, weight, args.grad_inputs[0], nullptr, scratch, stream));
    }
    if (args.grad_parameters[0] != nullptr) {
      STARLING_RETURN_IF_ERROR(WeightGradient(args, gradient, scratch, stream));
    }
    if (geometry_.bias && args.grad_parameters[1] != nullptr) {
      STARLING_RETURN_IF_CUDA_ERROR(LaunchColumnSums(element(), gradient, columns_,
                                                     geometry_.outputs, args.grad_parameters[1],
                                                     scratch, stream.get()));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr ActivationOf kGelu = {Activation::kGeluTanh};

  // For backward. In float that would need as much memory as the parameters themselves.
  bool keeps_weight() const {
    const size_t bytes = features_ * geometry_.inputs * ElementBytes(element());
    return spec_.training && element() != Element::kFloat &&
           kKeptWeightShare * bytes <= output_bytes_;
  }

  absl::Status WeightGradient(const BackwardArgs& args, const void* gradient, void* scratch,
                              CudaStream& stream) {
    float* const to = args.grad_parameters[0];
    // Padding's rows come last.
    float* const place =
        features_ == geometry_.outputs ? to : PieceAt<float>(args.workspace, padded_gradient_);
    Gemm& product = IsAlignedForProducts(place) ? *weight_gradient_ : *weight_gradient_anywhere_;
    STARLING_RETURN_IF_ERROR(
        product.Run(gradient, args.inputs[0], place, nullptr, scratch, stream));
    return Copy(to, place, geometry_.outputs * geometry_.inputs * sizeof(float), stream);
  }

  absl::Status PrepareForward(const std::shared_ptr<const CublasLt>& library,
                              const GemmSpec& plain) {
    GemmSpec fused = plain;
    fused.gelu = true;
    fused.keeps_sum = spec_.training;
    if (geometry_.gelu && GeluFitsEpilogue(fused)) {
      absl::StatusOr<std::unique_ptr<Gemm>> gemm = Gemm::Create(library, fused);
      gelu_in_epilogue_ = gemm.ok();
      if (gemm.ok()) forward_ = *std::move(gemm);
      if (!absl::IsUnimplemented(gemm.status())) return gemm.status();
      slower_because_ = absl::StrCat("GELU in a kernel of its own: ", gemm.status().message());
    }
    STARLING_ASSIGN_OR_RETURN(forward_, Gemm::Create(library, plain));
    return absl::OkStatus();
  }

  const int64_t features_;  // of the output, with padding
  Pieces work_, saved_;     // declared before their users
  const StagedParameter weight_, bias_;
  const ColumnPlan columns_;
  size_t sum_ = 0;  // in `saved`
  // In the workspace: for one product or sum at a time; and the weight's gradient.
  size_t scratch_ = 0, padded_gradient_ = 0;
  bool gelu_in_epilogue_ = false;
  std::unique_ptr<Gemm> forward_, input_gradient_;
  // Chosen by the gradient's alignment, which depends on the parameters before it: the same every
  // step.
  std::unique_ptr<Gemm> weight_gradient_, weight_gradient_anywhere_;
};

// C = scale * A * B, or A times the transpose of B.
class MatMulKernel : public CudaKernel {
 public:
  MatMulKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan) {}

  absl::Status Prepare(const Libraries& libraries) {
    const std::shared_ptr<const CublasLt>& library = libraries.products;
    const int64_t m = geometry_.rows, k = geometry_.inputs, n = geometry_.outputs;
    STARLING_ASSIGN_OR_RETURN(
        forward_, Create(library, {.m = m, .n = n, .k = k, .transpose_b = geometry_.transpose_b}));
    workspace_bytes_ = forward_->workspace_bytes();
    if (!spec_.training) return absl::OkStatus();
    // dA = dC B^T; if B is used transposed, B^T is what is stored.
    STARLING_ASSIGN_OR_RETURN(
        first_, Create(library, {.m = m, .n = k, .k = n, .transpose_b = !geometry_.transpose_b}));
    // dB = A^T dC; if transposed, dC^T A.
    STARLING_ASSIGN_OR_RETURN(
        second_, Create(library, geometry_.transpose_b
                                     ? GemmSpec{.m = n, .n = k, .k = m, .transpose_a = true}
                                     : GemmSpec{.m = k, .n = n, .k = m, .transpose_a = true}));
    workspace_bytes_ =
        std::max({workspace_bytes_, first_->workspace_bytes(), second_->workspace_bytes()});
    backward_reads_input_.assign(2, true);
    return absl::OkStatus();
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    return forward_->Run(args.inputs[0], args.inputs[1], args.output, nullptr, args.workspace,
                         stream);
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] != nullptr) {
      STARLING_RETURN_IF_ERROR(first_->Run(args.grad_output, args.inputs[1], args.grad_inputs[0],
                                           nullptr, args.workspace, stream));
    }
    if (args.grad_inputs[1] == nullptr) return absl::OkStatus();
    const void *a = args.inputs[0], *b = args.grad_output;
    if (geometry_.transpose_b) std::swap(a, b);
    return second_->Run(a, b, args.grad_inputs[1], nullptr, args.workspace, stream);
  }

 private:
  absl::StatusOr<std::unique_ptr<Gemm>> Create(const std::shared_ptr<const CublasLt>& library,
                                               GemmSpec spec) const {
    spec.batch = output_count() / (geometry_.rows * geometry_.outputs);
    spec.step_a = spec.m * spec.k;
    spec.step_b = spec.k * spec.n;
    spec.step_d = spec.m * spec.n;
    spec.input = spec.output = element();
    spec.tf32 = spec_.tf32;
    spec.alpha = static_cast<float>(geometry_.scale);
    return Gemm::Create(library, spec);
  }

  std::unique_ptr<Gemm> forward_, first_, second_;
};

}  // namespace

const MakeCudaKernel kMakeLinear = MakeKernel<LinearKernel>;
const MakeCudaKernel kMakeMatMul = MakeKernel<MatMulKernel>;

}  // namespace starling::cuda
