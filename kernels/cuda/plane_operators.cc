// Batch norm and pooling, with channels last.
#include "absl/strings/str_cat.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/planes.h"

namespace starling::cuda {
namespace {

enum Parameter { kWeight = 0, kBias = 1, kMean = 2, kVariance = 3 };

// Optionally with a second input that is added to the normalised value, and optionally with a ReLU.
class BatchNormKernel : public CudaKernel {
 public:
  BatchNormKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                  const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan),
        columns_(PlanColumns(geometry.batch * geometry.spatial, geometry.inputs)),
        channel_bytes_(static_cast<size_t>(geometry.inputs) * sizeof(float)) {
    Pieces saved, work;
    if (spec.training) {
      mean_ = saved.Take(channel_bytes_);
      variance_ = saved.Take(channel_bytes_);
      scale_ = saved.Take(channel_bytes_);
      sums_ = work.Take(columns_.workspace_bytes());
      dy_sums_ = work.Take(channel_bytes_);
      product_sums_ = work.Take(channel_bytes_);
      backward_reads_input_[0] = true;
      backward_reads_output_ = reads_output();
      backward_in_place_ok_ = true;
    } else {
      scale_ = work.Take(channel_bytes_);
      forward_in_place_ok_ = true;
    }
    saved_bytes_ = saved.size();
    workspace_bytes_ = work.size();
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    ChannelFactors factors = {.mean = args.parameters[kMean],
                              .weight = args.parameters[kWeight],
                              .bias = args.parameters[kBias]};
    const auto epsilon = static_cast<float>(geometry_.epsilon);
    if (spec_.training) {
      const BatchStatistics of = {PieceAt<float>(args.saved, mean_),
                                  PieceAt<float>(args.saved, variance_),
                                  PieceAt<float>(args.saved, scale_)};
      STARLING_RETURN_IF_CUDA_ERROR(
          LaunchBatchStatistics(element(), args.inputs[0], columns_, epsilon, of,
                                PieceAt(args.workspace, sums_), stream.get()));
      factors.mean = of.mean;
      factors.scale = of.scale;
    } else {
      float* const scale = PieceAt<float>(args.workspace, scale_);
      STARLING_RETURN_IF_CUDA_ERROR(LaunchInverseRoot(args.parameters[kVariance], epsilon,
                                                      geometry_.inputs, scale, stream.get()));
      factors.scale = scale;
    }
    const void* const other = args.inputs.size() > 1 ? args.inputs[1] : nullptr;
    return STARLING_CUDA_STATUS(LaunchNormalize(element(), args.inputs[0], other, geometry_.relu,
                                                factors, columns_, args.output, stream.get()));
  }

  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    const ChannelFactors factors = {.mean = PieceAt<float>(args.saved, mean_),
                                    .scale = PieceAt<float>(args.saved, scale_),
                                    .weight = args.parameters[kWeight],
                                    .bias = args.parameters[kBias]};
    const BatchNormOf of = {.element = element(),
                            .relu = geometry_.relu,
                            .x = args.inputs[0],
                            .y = reads_output() ? args.output : nullptr,
                            .dy = args.grad_output};
    const auto or_workspace = [&](float* gradient, size_t offset) {
      return gradient != nullptr ? gradient : PieceAt<float>(args.workspace, offset);
    };
    const BatchNormSums sums = {
        .dy = or_workspace(args.grad_parameters[kBias], dy_sums_),
        .product = or_workspace(args.grad_parameters[kWeight], product_sums_),
        .mean_share = args.grad_parameters[kMean],
        .variance_share = args.grad_parameters[kVariance],
        .variance = PieceAt<float>(args.saved, variance_),
        .share = static_cast<float>(geometry_.batch) / static_cast<float>(args.global_batch)};
    STARLING_RETURN_IF_CUDA_ERROR(LaunchBatchNormSums(
        of, factors, columns_, sums, PieceAt(args.workspace, sums_), stream.get()));
    void* const dother = args.grad_inputs.size() > 1 ? args.grad_inputs[1] : nullptr;
    if (args.grad_inputs[0] == nullptr && dother == nullptr) return absl::OkStatus();
    return STARLING_CUDA_STATUS(LaunchBatchNormGradient(
        of, factors, sums.dy, sums.product, columns_, args.grad_inputs[0], dother, stream.get()));
  }

 private:
  // Where the ReLU's input is the sum with another value, only its output tells where it passed.
  bool reads_output() const { return geometry_.relu && spec_.input_shapes.size() > 1; }

  const ColumnPlan columns_;
  const size_t channel_bytes_;
  size_t mean_ = 0, variance_ = 0;                    // in `saved`
  size_t scale_ = 0;                                  // in `saved`; for inference in the workspace
  size_t sums_ = 0, dy_sums_ = 0, product_sums_ = 0;  // in the workspace
};

PoolShape PoolShapeOf(const Geometry2d& p) {
  return {.batch = p.batch,
          .channels = p.in_channels,
          .in_height = p.in_height,
          .in_width = p.in_width,
          .out_height = p.out_height,
          .out_width = p.out_width,
          .kernel_height = p.kernel_height,
          .kernel_width = p.kernel_width,
          .stride_height = p.stride_height,
          .stride_width = p.stride_width,
          .padding_height = p.padding_height,
          .padding_width = p.padding_width};
}

class MaxPoolKernel : public CudaKernel {
 public:
  MaxPoolKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan), shape_(PoolShapeOf(geometry.plane)) {
    if (spec.training) saved_bytes_ = static_cast<size_t>(output_count()) * sizeof(uint16_t);
  }

  absl::Status Prepare(const Libraries&) const {
    constexpr int64_t kWindowMax = 65536;
    const int64_t window = shape_.kernel_height * shape_.kernel_width;
    if (window <= kWindowMax) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat("operator '", spec_.name, "' (", spec_.op,
                                                 "): expected windows of at most ", kWindowMax,
                                                 " elements on a GPU, got ", window));
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    uint16_t* const at = spec_.training ? static_cast<uint16_t*>(args.saved) : nullptr;
    return STARLING_CUDA_STATUS(
        LaunchMaxPool(element(), shape_, args.inputs[0], args.output, at, stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    return STARLING_CUDA_STATUS(
        LaunchMaxPoolGradient(element(), shape_, static_cast<const uint16_t*>(args.saved),
                              args.grad_output, args.grad_inputs[0], stream.get()));
  }

 private:
  const PoolShape shape_;
};

class AveragePoolKernel : public CudaKernel {
 public:
  AveragePoolKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                    const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan), shape_(PoolShapeOf(geometry.plane)) {}

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    return STARLING_CUDA_STATUS(
        LaunchAveragePool(element(), shape_, args.inputs[0], args.output, stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    return STARLING_CUDA_STATUS(LaunchAveragePoolGradient(element(), shape_, args.grad_output,
                                                          args.grad_inputs[0], stream.get()));
  }

 private:
  const PoolShape shape_;
};

class GlobalAverageKernel : public CudaKernel {
 public:
  GlobalAverageKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                      const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan) {}

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    return STARLING_CUDA_STATUS(LaunchGlobalAverage(element(), args.inputs[0], geometry_.batch,
                                                    geometry_.spatial, geometry_.inputs,
                                                    args.output, stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    return STARLING_CUDA_STATUS(
        LaunchGlobalAverageGradient(element(), args.grad_output, geometry_.batch, geometry_.spatial,
                                    geometry_.inputs, args.grad_inputs[0], stream.get()));
  }
};

}  // namespace

const MakeCudaKernel kMakeBatchNorm = MakeKernel<BatchNormKernel>;
const MakeCudaKernel kMakeMaxPool = MakeKernel<MaxPoolKernel>;
const MakeCudaKernel kMakeAveragePool = MakeKernel<AveragePoolKernel>;
const MakeCudaKernel kMakeGlobalAvgPool = MakeKernel<GlobalAverageKernel>;

}  // namespace starling::cuda
