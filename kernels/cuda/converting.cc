#include <utility>

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/movement.h"

namespace starling::cuda {
namespace {

// Converts a value from one layout and type to another.
absl::Status Convert(const Shape& shape, const Format& from_format, const void* from,
                     const Format& to_format, void* to, CudaStream& stream) {
  const int64_t count = ElementCount(shape);
  if (from_format.padded || to_format.padded) {
    const int64_t columns = shape.back();
    return STARLING_CUDA_STATUS(LaunchCastRows({.from_element = from_format.element,
                                                .to_element = to_format.element,
                                                .rows = count / columns,
                                                .columns = columns,
                                                .from_row = RowStride(columns, from_format),
                                                .to_row = RowStride(columns, to_format)},
                                               from, to, stream.get()));
  }
  if (from_format.channels_last == to_format.channels_last) {
    return STARLING_CUDA_STATUS(
        LaunchCast(from_format.element, from, to_format.element, to, count, stream.get()));
  }
  const int64_t channels = shape[1], points = shape[2] * shape[3];
  const int64_t rows = to_format.channels_last ? channels : points;
  return STARLING_CUDA_STATUS(LaunchTranspose(from_format.element, from, to_format.element, to,
                                              shape[0], rows, channels * points / rows,
                                              stream.get()));
}

// A value as it comes and as the inner kernel wants it: a no-op, or a place in the workspace.
class Staged {
 public:
  Staged(const Shape& shape, const Format& outside, const Format& inside, Pieces& pieces)
      : shape_(shape), outside_(outside), inside_(inside), differs_(!(outside == inside)) {
    if (differs_) offset_ = pieces.Take(ValueBytes(shape, inside));
  }

  absl::StatusOr<const void*> In(const void* value, void* workspace, CudaStream& stream) const {
    if (!differs_ || value == nullptr) return value;
    void* const place = PieceAt(workspace, offset_);
    STARLING_RETURN_IF_ERROR(Convert(shape_, outside_, value, inside_, place, stream));
    return static_cast<const void*>(place);
  }
  void* Place(void* value, void* workspace) const {
    return differs_ && value != nullptr ? PieceAt(workspace, offset_) : value;
  }
  absl::Status Out(void* value, void* workspace, CudaStream& stream) const {
    if (!differs_ || value == nullptr) return absl::OkStatus();
    return Convert(shape_, inside_, PieceAt(workspace, offset_), outside_, value, stream);
  }

 private:
  Shape shape_;
  Format outside_, inside_;
  bool differs_;
  size_t offset_ = 0;
};

class ConvertingKernel : public OperatorKernel {
 public:
  ConvertingKernel(const OperatorSpec& spec, const FormatPlan& plan,
                   const std::vector<Format>& given, const Format& output, CudaKernelPtr inner)
      : OperatorKernel(*inner), training_(spec.training), inner_(std::move(inner)) {
    Pieces pieces;
    pieces.Take(workspace_bytes_);
    for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
      inputs_.emplace_back(spec.input_shapes[i], given[i], plan.inputs[i], pieces);
      gradients_.emplace_back(spec.input_shapes[i], given[i], plan.inputs[i], pieces);
      input_bytes_[i] = ValueBytes(spec.input_shapes[i], given[i]);
    }
    inner_inputs_.resize(inputs_.size());
    inner_gradients_.resize(inputs_.size());
    output_.emplace_back(spec.output_shape, output, plan.output, pieces);
    output_.emplace_back(spec.output_shape, output, plan.output, pieces);
    output_format_ = ToValueFormat(output);
    output_bytes_ = ValueBytes(spec.output_shape, output);
    workspace_bytes_ = pieces.size();
    forward_in_place_ok_ = backward_in_place_ok_ = false;
  }

  absl::Status Forward(const ForwardArgs& args, Stream& any_stream) override {
    auto& stream = static_cast<CudaStream&>(any_stream);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      STARLING_ASSIGN_OR_RETURN(inner_inputs_[i],
                                inputs_[i].In(args.inputs[i], args.workspace, stream));
    }
    ForwardArgs inside = args;
    inside.inputs = inner_inputs_;
    inside.output = output_[kValue].Place(args.output, args.workspace);
    STARLING_RETURN_IF_ERROR(inner_->Forward(inside, stream));
    return output_[kValue].Out(args.output, args.workspace, stream);
  }

  absl::Status Backward(const BackwardArgs& args, Stream& any_stream) override {
    if (!training_) return inner_->Backward(args, any_stream);  // which refuses
    auto& stream = static_cast<CudaStream&>(any_stream);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const void* const given = backward_reads_input_[i] ? args.inputs[i] : nullptr;
      STARLING_ASSIGN_OR_RETURN(inner_inputs_[i], inputs_[i].In(given, args.workspace, stream));
      inner_gradients_[i] = gradients_[i].Place(args.grad_inputs[i], args.workspace);
    }
    BackwardArgs inside = args;
    inside.inputs = inner_inputs_;
    inside.grad_inputs = absl::MakeConstSpan(inner_gradients_);
    if (backward_reads_output_) {
      STARLING_ASSIGN_OR_RETURN(inside.output,
                                output_[kValue].In(args.output, args.workspace, stream));
    }
    STARLING_ASSIGN_OR_RETURN(inside.grad_output,
                              output_[kGradient].In(args.grad_output, args.workspace, stream));
    STARLING_RETURN_IF_ERROR(inner_->Backward(inside, stream));
    for (size_t i = 0; i < gradients_.size(); ++i) {
      STARLING_RETURN_IF_ERROR(gradients_[i].Out(args.grad_inputs[i], args.workspace, stream));
    }
    return absl::OkStatus();
  }

 private:
  enum { kValue = 0, kGradient = 1 };

  const bool training_;
  const CudaKernelPtr inner_;
  std::vector<Staged> inputs_, gradients_;
  std::vector<Staged> output_;  // the value, its gradient
  // For the current call; members, so that a call allocates nothing.
  std::vector<const void*> inner_inputs_;
  std::vector<void*> inner_gradients_;
};

}  // namespace

CudaKernelPtr MakeConverting(const OperatorSpec& spec, const FormatPlan& plan,
                             const std::vector<Format>& given, const Format& output,
                             CudaKernelPtr inner) {
  return std::make_unique<ConvertingKernel>(spec, plan, given, output, std::move(inner));
}

}  // namespace starling::cuda
