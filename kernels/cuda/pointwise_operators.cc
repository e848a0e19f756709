// Activations, dropout, add and mul: elementwise, in any layout.
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/random.h"

namespace starling::cuda {
namespace {

using Op = OperatorGeometry::Op;

ActivationOf FunctionOf(const OperatorGeometry& g) {
  switch (g.op) {
    case Op::kGelu: return {g.approximate ? Activation::kGeluTanh : Activation::kGelu};
    case Op::kSigmoid: return {Activation::kSigmoid};
    case Op::kTanh: return {Activation::kTanh};
    case Op::kClip:
      return {Activation::kClip, static_cast<float>(g.minimum), static_cast<float>(g.maximum)};
    default: return {Activation::kRelu};
  }
}

class ActivationKernel : public CudaKernel {
 public:
  ActivationKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                   const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan), function_(FunctionOf(geometry)) {
    const bool of_output = GradientReadsOutput(function_.kind);
    backward_reads_output_ = spec.training && of_output;
    backward_reads_input_[0] = spec.training && !of_output;
    forward_in_place_ok_ = !backward_reads_input_[0];
    backward_in_place_ok_ = true;
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    return STARLING_CUDA_STATUS(LaunchActivation(function_, element(), args.inputs[0], args.output,
                                                 output_count(), stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    const void* const kept = backward_reads_output_ ? args.output : args.inputs[0];
    return STARLING_CUDA_STATUS(LaunchActivationGradient(function_, element(), kept,
                                                         args.grad_output, args.grad_inputs[0],
                                                         output_count(), stream.get()));
  }

 private:
  const ActivationOf function_;
};

class DropoutKernel : public CudaKernel {
 public:
  DropoutKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan),
        drops_(spec.training && DropThreshold(geometry.rate) > 0),
        scale_(static_cast<float>(1 / (1 - geometry.rate))) {
    forward_in_place_ok_ = backward_in_place_ok_ = true;
    if (drops_) saved_bytes_ = static_cast<size_t>(output_count() + 7) / 8;
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    if (!drops_) return Copy(args.output, args.inputs[0], output_bytes_, stream);
    const PhiloxKey key = {args.random.seed, args.random.step, args.random.micro_batch,
                           args.random.node};
    return STARLING_CUDA_STATUS(LaunchDropout(
        element(), key, args.values, DropThreshold(geometry_.rate), scale_, args.inputs[0],
        args.output, static_cast<uint8_t*>(args.saved), output_count(), stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    if (!drops_) return Copy(args.grad_inputs[0], args.grad_output, output_bytes_, stream);
    return STARLING_CUDA_STATUS(
        LaunchDropoutGradient(element(), scale_, static_cast<const uint8_t*>(args.saved),
                              args.grad_output, args.grad_inputs[0], output_count(), stream.get()));
  }

 private:
  const bool drops_;
  const float scale_;
};

class AddKernel : public CudaKernel {
 public:
  AddKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan) {
    forward_in_place_ok_ = backward_in_place_ok_ = true;
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    return STARLING_CUDA_STATUS(LaunchAdd(element(), args.inputs[0], args.inputs[1], args.output,
                                          output_count(), stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    for (void* const gradient : args.grad_inputs) {
      if (gradient == nullptr) continue;
      STARLING_RETURN_IF_ERROR(Copy(gradient, args.grad_output, output_bytes_, stream));
    }
    return absl::OkStatus();
  }
};

class MulKernel : public CudaKernel {
 public:
  MulKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan) {
    backward_reads_input_.assign(2, spec.training);
    forward_in_place_ok_ = !spec.training;
    backward_in_place_ok_ = true;
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    return STARLING_CUDA_STATUS(LaunchMultiply(element(), args.inputs[0], args.inputs[1],
                                               args.output, output_count(), stream.get()));
  }
  // The first input's gradient last: it may alias the output's.
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    for (int i : {1, 0}) {
      if (args.grad_inputs[i] == nullptr) continue;
      STARLING_RETURN_IF_CUDA_ERROR(LaunchMultiply(element(), args.grad_output, args.inputs[1 - i],
                                                   args.grad_inputs[i], output_count(),
                                                   stream.get()));
    }
    return absl::OkStatus();
  }
};

}  // namespace

const MakeCudaKernel kMakeActivation = MakeKernel<ActivationKernel>;
const MakeCudaKernel kMakeDropout = MakeKernel<DropoutKernel>;
const MakeCudaKernel kMakeAdd = MakeKernel<AddKernel>;
const MakeCudaKernel kMakeMul = MakeKernel<MulKernel>;

}  // namespace starling::cuda
