#include "kernels/cuda/kernel.h"

#include "absl/strings/str_cat.h"

namespace starling::cuda {

CudaKernel::CudaKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                       const FormatPlan& plan)
    : spec_(spec), geometry_(geometry), plan_(plan) {
  for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
    input_bytes_.push_back(ValueBytes(spec.input_shapes[i], plan.inputs[i]));
  }
  backward_reads_input_.assign(spec.input_shapes.size(), false);
  output_format_ = ToValueFormat(plan.output);
  output_bytes_ = ValueBytes(spec.output_shape, plan.output);
}

absl::Status CudaKernel::Forward(const ForwardArgs& args, Stream& stream) {
  return Run(args, static_cast<CudaStream&>(stream));
}

absl::Status CudaKernel::Backward(const BackwardArgs& args, Stream& stream) {
  if (!spec_.training) {
    return absl::FailedPreconditionError(absl::StrCat(
        "operator '", spec_.name, "' (", spec_.op, ") was made for inference and has no gradient"));
  }
  return RunBackward(args, static_cast<CudaStream&>(stream));
}

absl::Status CudaKernel::Copy(void* to, const void* from, size_t bytes, CudaStream& stream) const {
  if (to == from || bytes == 0) return absl::OkStatus();
  return STARLING_CUDA_STATUS(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()));
}

}  // namespace starling::cuda
