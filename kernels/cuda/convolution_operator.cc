// Convolution with cuDNN. In bfloat16 and half, channels last, on tensor cores; in float,
// row-major, where cuDNN has plans that round nothing; tf32 allows the others, too. Our own kernels
// compute what it has no plan for.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/direct_convolution.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/movement.h"
#include "kernels/cuda/rows.h"

namespace starling::cuda {
namespace {

const char* PassText(Pass pass) {
  switch (pass) {
    case Pass::kForward: return "forward";
    case Pass::kInputGradient: return "the input's gradient";
    case Pass::kWeightGradient: return "the weight's gradient";
  }
  return "";
}

class ConvolutionKernel : public CudaKernel {
 public:
  ConvolutionKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                    const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan), p_(geometry_.plane) {}

  absl::Status Prepare(const Libraries& libraries) {
    const auto plan = [&](Pass pass) -> absl::StatusOr<std::shared_ptr<const ConvolutionPlan>> {
      const ConvolutionKey key = KeyOf(p_, pass, element(), plan_.output.channels_last,
                                       {.tf32 = spec_.tf32, .tune = spec_.tune});
      auto found = libraries.cudnn->Plan(key);
      if (!absl::IsUnimplemented(found.status())) return found;
      absl::StrAppend(&slower_because_,
                      slower_because_.empty() ? "convolution by its definition: " : "; ",
                      PassText(pass), ": ", found.status().message());
      return MakeDirectConvolution(key);
    };
    STARLING_ASSIGN_OR_RETURN(forward_, plan(Pass::kForward));
    size_t scratch_bytes = forward_->workspace_bytes();
    if (spec_.training) {
      STARLING_ASSIGN_OR_RETURN(input_gradient_, plan(Pass::kInputGradient));
      STARLING_ASSIGN_OR_RETURN(weight_gradient_, plan(Pass::kWeightGradient));
      scratch_bytes = std::max({scratch_bytes, input_gradient_->workspace_bytes(),
                                weight_gradient_->workspace_bytes(), columns().workspace_bytes()});
      backward_reads_input_[0] = true;
    }
    Pieces work;
    if (keeps_weight()) saved_bytes_ = weight_bytes();
    weight_ = work.Take(weight_bytes());  // or its gradient
    // Sums over channels need them last.
    if (spec_.training && p_.bias && !plan_.output.channels_last) {
      turned_ = work.Take(output_bytes_);
    }
    scratch_ = work.Take(scratch_bytes);
    workspace_bytes_ = work.size();
    return absl::OkStatus();
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    void* const weight = keeps_weight() ? args.saved : PieceAt(args.workspace, weight_);
    STARLING_RETURN_IF_ERROR(StageWeight(args.parameters[0], weight, stream));
    STARLING_RETURN_IF_ERROR(forward_->Run(const_cast<void*>(args.inputs[0]), weight, args.output,
                                           PieceAt(args.workspace, scratch_), stream));
    if (!p_.bias) return absl::OkStatus();
    return STARLING_CUDA_STATUS(LaunchAddToChannels(element(), args.output, args.parameters[1],
                                                    p_.batch, p_.out_channels, out_points(),
                                                    plan_.output.channels_last, stream.get()));
  }

  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    void* const weight = PieceAt(args.workspace, weight_);
    void* const scratch = PieceAt(args.workspace, scratch_);
    void* const dy = const_cast<void*>(args.grad_output);
    if (args.grad_inputs[0] != nullptr) {
      void* const staged = keeps_weight() ? args.saved : weight;
      if (!keeps_weight()) {
        STARLING_RETURN_IF_ERROR(StageWeight(args.parameters[0], staged, stream));
      }
      STARLING_RETURN_IF_ERROR(
          input_gradient_->Run(args.grad_inputs[0], staged, dy, scratch, stream));
    }
    if (args.grad_parameters[0] != nullptr) {
      STARLING_RETURN_IF_ERROR(
          weight_gradient_->Run(const_cast<void*>(args.inputs[0]), weight, dy, scratch, stream));
      STARLING_RETURN_IF_ERROR(StoreWeightGradient(weight, args.grad_parameters[0], stream));
    }
    if (!p_.bias || args.grad_parameters[1] == nullptr) return absl::OkStatus();
    const void* last = dy;
    if (!plan_.output.channels_last) {
      void* const turned = PieceAt(args.workspace, turned_);
      STARLING_RETURN_IF_CUDA_ERROR(LaunchTranspose(element(), dy, element(), turned, p_.batch,
                                                    p_.out_channels, out_points(), stream.get()));
      last = turned;
    }
    return STARLING_CUDA_STATUS(LaunchColumnSums(element(), last, columns(), p_.out_channels,
                                                 args.grad_parameters[1], scratch, stream.get()));
  }

 private:
  size_t weight_bytes() const {
    return static_cast<size_t>(p_.out_channels * filter()) * ElementBytes(element());
  }
  // For backward. In float that would need as much memory as the parameters themselves.
  bool keeps_weight() const {
    return spec_.training && element() != Element::kFloat &&
           kKeptWeightShare * weight_bytes() <= output_bytes_;
  }
  int64_t out_points() const { return p_.out_height * p_.out_width; }
  int64_t window() const { return p_.kernel_height * p_.kernel_width; }
  // Elements of one filter.
  int64_t filter() const { return p_.in_channels / p_.groups * window(); }
  ColumnPlan columns() const { return PlanColumns(p_.batch * out_points(), p_.out_channels); }

  // Converts to the values' type and layout, aligned.
  absl::Status StageWeight(const float* weight, void* place, CudaStream& stream) const {
    if (!plan_.output.channels_last) {
      return STARLING_CUDA_STATUS(LaunchCast(Element::kFloat, weight, element(), place,
                                             p_.out_channels * filter(), stream.get()));
    }
    return STARLING_CUDA_STATUS(LaunchTranspose(Element::kFloat, weight, element(), place,
                                                p_.out_channels, filter() / window(), window(),
                                                stream.get()));
  }
  absl::Status StoreWeightGradient(const void* staged, float* gradient, CudaStream& stream) const {
    if (!plan_.output.channels_last) {
      return STARLING_CUDA_STATUS(LaunchCast(element(), staged, Element::kFloat, gradient,
                                             p_.out_channels * filter(), stream.get()));
    }
    return STARLING_CUDA_STATUS(LaunchTranspose(element(), staged, Element::kFloat, gradient,
                                                p_.out_channels, window(), filter() / window(),
                                                stream.get()));
  }

  const Geometry2d& p_;
  std::shared_ptr<const ConvolutionPlan> forward_, input_gradient_, weight_gradient_;
  size_t weight_ = 0, turned_ = 0, scratch_ = 0;  // in the workspace
};

}  // namespace

const MakeCudaKernel kMakeConvolution = MakeKernel<ConvolutionKernel>;

}  // namespace starling::cuda
