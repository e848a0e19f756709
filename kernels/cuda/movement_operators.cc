// Operators that only move elements.
#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/movement.h"

namespace starling::cuda {
namespace {

// Reshape and flatten: the bytes are unchanged.
class ReshapeKernel : public CudaKernel {
 public:
  ReshapeKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan) {
    forward_in_place_ok_ = backward_in_place_ok_ = true;
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    return Copy(args.output, args.inputs[0], output_bytes_, stream);
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    return Copy(args.grad_inputs[0], args.grad_output, output_bytes_, stream);
  }
};

// Row-major strides.
std::vector<int64_t> StridesOf(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

class TransposeKernel : public CudaKernel {
 public:
  TransposeKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                  const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan) {}

  absl::Status Prepare(const Libraries&) {
    const Shape &in = spec_.input_shapes[0], &out = spec_.output_shape;
    if (in.size() > kAxesMax) {
      return absl::UnimplementedError(absl::StrCat("operator '", spec_.name, "' (", spec_.op,
                                                   "): expected at most ", kAxesMax,
                                                   " dimensions on a GPU, got ", in.size()));
    }
    const std::vector<int64_t> in_strides = StridesOf(in), out_strides = StridesOf(out);
    forward_.axes = backward_.axes = static_cast<int>(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      const int64_t axis = geometry_.axes[i];
      forward_.size[i] = out[i];
      forward_.stride[i] = in_strides[axis];
      backward_.size[axis] = in[axis];
      backward_.stride[axis] = out_strides[i];
    }
    return absl::OkStatus();
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    return STARLING_CUDA_STATUS(LaunchPermute(element(), forward_, args.inputs[0], args.output,
                                              output_count(), stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    return STARLING_CUDA_STATUS(LaunchPermute(element(), backward_, args.grad_output,
                                              args.grad_inputs[0], output_count(), stream.get()));
  }

 private:
  AxisOrder forward_, backward_;
};

// A part of an axis is, in memory, a piece of each of `stretches()` equally long contiguous runs.
class StretchesKernel : public CudaKernel {
 protected:
  StretchesKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                  const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan), axis_(MemoryAxis(geometry.axis, plan.output)) {
    const Shape out = MemoryShape(spec.output_shape, plan.output);
    stretches_ = std::accumulate(out.begin(), out.begin() + axis_, int64_t{1}, std::multiplies<>());
    row_bytes_ = static_cast<size_t>(std::accumulate(out.begin() + axis_ + 1, out.end(), int64_t{1},
                                                     std::multiplies<>())) *
                 ElementBytes(plan.output.element);
  }

  size_t BytesOf(const Shape& shape) const {
    return static_cast<size_t>(MemoryShape(shape, plan_.output)[axis_]) * row_bytes_;
  }
  // Copies `width` bytes from each run of `from_pitch` to each of `to_pitch`.
  absl::Status CopyStretches(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                             size_t width, CudaStream& stream) const {
    if (stretches_ == 1) return Copy(to, from, width, stream);
    return STARLING_CUDA_STATUS(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width,
                                                  static_cast<size_t>(stretches_),
                                                  cudaMemcpyDeviceToDevice, stream.get()));
  }

  const int64_t axis_;
  int64_t stretches_ = 1;
  size_t row_bytes_ = 0;  // of one position on the axis
};

class ConcatKernel : public StretchesKernel {
 public:
  ConcatKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan)
      : StretchesKernel(spec, geometry, plan) {}

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    const size_t whole = BytesOf(spec_.output_shape);
    size_t begin = 0;
    for (size_t i = 0; i < args.inputs.size(); ++i) {
      const size_t width = BytesOf(spec_.input_shapes[i]);
      STARLING_RETURN_IF_ERROR(
          CopyStretches(PieceAt(args.output, begin), whole, args.inputs[i], width, width, stream));
      begin += width;
    }
    return absl::OkStatus();
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    const size_t whole = BytesOf(spec_.output_shape);
    size_t begin = 0;
    for (size_t i = 0; i < args.grad_inputs.size(); ++i) {
      const size_t width = BytesOf(spec_.input_shapes[i]);
      if (args.grad_inputs[i] != nullptr) {
        STARLING_RETURN_IF_ERROR(CopyStretches(args.grad_inputs[i], width,
                                               PieceAt<char>(args.grad_output, begin), whole, width,
                                               stream));
      }
      begin += width;
    }
    return absl::OkStatus();
  }
};

class SliceKernel : public StretchesKernel {
 public:
  SliceKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan)
      : StretchesKernel(spec, geometry, plan),
        begin_(static_cast<size_t>(geometry.begin) * row_bytes_) {}

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    const size_t width = BytesOf(spec_.output_shape);
    return CopyStretches(args.output, width, PieceAt<char>(args.inputs[0], begin_),
                         BytesOf(spec_.input_shapes[0]), width, stream);
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    STARLING_RETURN_IF_CUDA_ERROR(
        cudaMemsetAsync(args.grad_inputs[0], 0, input_bytes_[0], stream.get()));
    const size_t width = BytesOf(spec_.output_shape);
    return CopyStretches(PieceAt(args.grad_inputs[0], begin_), BytesOf(spec_.input_shapes[0]),
                         args.grad_output, width, width, stream);
  }

 private:
  const size_t begin_;  // where the part starts in a run
};

}  // namespace

const MakeCudaKernel kMakeReshape = MakeKernel<ReshapeKernel>;
const MakeCudaKernel kMakeTranspose = MakeKernel<TransposeKernel>;
const MakeCudaKernel kMakeConcat = MakeKernel<ConcatKernel>;
const MakeCudaKernel kMakeSlice = MakeKernel<SliceKernel>;

}  // namespace starling::cuda
