// Operators on rows of features: layer norm, tables, losses.
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/tables.h"

namespace starling::cuda {
namespace {

using Op = OperatorGeometry::Op;

class LayerNormKernel : public CudaKernel {
 public:
  LayerNormKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                  const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan), columns_(PlanColumns(geometry.rows, geometry.inputs)) {
    forward_in_place_ok_ = !spec.training;
    if (!spec.training) return;
    backward_reads_input_[0] = true;
    backward_in_place_ok_ = true;
    Pieces saved;
    const size_t bytes = static_cast<size_t>(geometry.rows) * sizeof(float);
    mean_ = saved.Take(bytes);
    scale_ = saved.Take(bytes);
    saved_bytes_ = saved.size();
    workspace_bytes_ = columns_.workspace_bytes();
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    float* const mean = spec_.training ? PieceAt<float>(args.saved, mean_) : nullptr;
    float* const scale = spec_.training ? PieceAt<float>(args.saved, scale_) : nullptr;
    return STARLING_CUDA_STATUS(
        LaunchLayerNorm(element(), args.inputs[0], args.parameters[0], args.parameters[1],
                        static_cast<float>(geometry_.epsilon), geometry_.rows, geometry_.inputs,
                        args.output, mean, scale, stream.get()));
  }
  // The input's gradient last: it may alias the output's.
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    const float* const mean = PieceAt<float>(args.saved, mean_);
    const float* const scale = PieceAt<float>(args.saved, scale_);
    if (args.grad_parameters[0] != nullptr || args.grad_parameters[1] != nullptr) {
      STARLING_RETURN_IF_CUDA_ERROR(LaunchLayerNormParameterGradients(
          element(), args.inputs[0], mean, scale, args.grad_output, columns_,
          args.grad_parameters[0], args.grad_parameters[1], args.workspace, stream.get()));
    }
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    return STARLING_CUDA_STATUS(LaunchLayerNormGradient(
        element(), args.inputs[0], args.parameters[0], mean, scale, args.grad_output,
        geometry_.rows, geometry_.inputs, args.grad_inputs[0], stream.get()));
  }

 private:
  const ColumnPlan columns_;
  size_t mean_ = 0, scale_ = 0;  // in `saved`
};

// Embedding, and gather_rows, which accepts indices out of range.
class TableKernel : public CudaKernel {
 public:
  TableKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan) {
    backward_reads_input_[0] = spec.training;
  }

  absl::Status Prepare(const Libraries&) {
    constexpr int64_t kIndicesMax = std::numeric_limits<int32_t>::max();
    const int64_t indices = geometry_.rows, rows = geometry_.inputs;
    if (indices > kIndicesMax || rows > kIndicesMax) {
      return absl::UnimplementedError(
          absl::StrCat("operator '", spec_.name, "' (", spec_.op, "): expected at most ",
                       kIndicesMax, " indices and rows on a GPU, got ", indices, " and ", rows));
    }
    if (geometry_.op == Op::kEmbedding) {
      STARLING_ASSIGN_OR_RETURN(
          watch_, IndexWatch::Create(spec_.name, spec_.op, rows, indices / geometry_.batch));
    }
    if (!spec_.training) return absl::OkStatus();
    return STARLING_CUDA_STATUS(ScatterWorkspaceBytes(indices, rows, &workspace_bytes_));
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    if (watch_ != nullptr) stream.Watch(watch_);
    return STARLING_CUDA_STATUS(
        LaunchGather(element(), static_cast<const int32_t*>(args.inputs[0]), args.parameters[0],
                     geometry_.rows, geometry_.inputs, geometry_.outputs, args.output,
                     watch_ == nullptr ? nullptr : watch_->word(), stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_parameters[0] == nullptr) return absl::OkStatus();
    return STARLING_CUDA_STATUS(
        LaunchScatter(element(), static_cast<const int32_t*>(args.inputs[0]), args.grad_output,
                      geometry_.rows, geometry_.inputs, geometry_.outputs, args.grad_parameters[0],
                      args.workspace, workspace_bytes_, stream.get()));
  }

 private:
  std::shared_ptr<IndexWatch> watch_;  // null: no index is an error
};

class PositionKernel : public CudaKernel {
 public:
  PositionKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan),
        sample_(geometry.rows * geometry.outputs),
        columns_(PlanColumns(geometry.batch, sample_)) {
    forward_in_place_ok_ = backward_in_place_ok_ = true;
    if (spec.training) workspace_bytes_ = columns_.workspace_bytes();
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    return STARLING_CUDA_STATUS(LaunchAddToEach(element(), args.inputs[0], args.parameters[0],
                                                geometry_.batch, sample_, args.output,
                                                stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (float* const table = args.grad_parameters[0]; table != nullptr) {
      const int64_t unused = geometry_.inputs * geometry_.outputs - sample_;
      if (unused > 0) {
        STARLING_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(
            table + sample_, 0, static_cast<size_t>(unused) * sizeof(float), stream.get()));
      }
      STARLING_RETURN_IF_CUDA_ERROR(LaunchColumnSums(element(), args.grad_output, columns_, sample_,
                                                     table, args.workspace, stream.get()));
    }
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    return Copy(args.grad_inputs[0], args.grad_output, output_bytes_, stream);
  }

 private:
  const int64_t sample_;  // elements of one sample
  const ColumnPlan columns_;
};

// The loss scale passed as an argument. With args.values the kernels multiply by the scale there
// instead, which gives the same bits because it is a power of two.
double ScaleArgument(const BackwardArgs& args) {
  return args.values != nullptr ? 1 : args.loss_scale;
}

class SoftmaxCrossEntropyKernel : public CudaKernel {
 public:
  SoftmaxCrossEntropyKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                            const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan), rows_of_sample_(geometry.rows / geometry.batch) {
    workspace_bytes_ = static_cast<size_t>(geometry.rows) * sizeof(float);
    if (!spec.training) return;
    saved_bytes_ = static_cast<size_t>(geometry.rows) * sizeof(float);
    backward_reads_input_.assign(2, true);
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    float* const losses = static_cast<float*>(args.workspace);
    STARLING_RETURN_IF_CUDA_ERROR(LaunchSoftmaxCrossEntropy(
        Logits(args.inputs[0]), static_cast<const int32_t*>(args.inputs[1]), losses,
        spec_.training ? static_cast<float*>(args.saved) : nullptr, stream.get()));
    return STARLING_CUDA_STATUS(LaunchRowSums(
        RowSum::kSum, losses, nullptr, 1.0f / static_cast<float>(rows_of_sample_), geometry_.batch,
        rows_of_sample_, static_cast<float*>(args.output), stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    const int64_t batch = geometry_.mean_reduction ? args.global_batch : 1;
    const double scale = ScaleArgument(args) / static_cast<double>(batch * rows_of_sample_);
    return STARLING_CUDA_STATUS(LaunchSoftmaxCrossEntropyGradient(
        Logits(args.inputs[0]), static_cast<const int32_t*>(args.inputs[1]),
        static_cast<const float*>(args.saved), static_cast<float>(scale), args.values,
        args.grad_inputs[0], stream.get()));
  }

 private:
  LogitRows Logits(const void* data) const {
    const Format& format = plan_.inputs[0];
    return {.element = format.element,
            .data = data,
            .rows = geometry_.rows,
            .columns = geometry_.outputs,
            .row_stride = RowStride(geometry_.outputs, format)};
  }

  const int64_t rows_of_sample_;
};

// Mean squared error, binary cross-entropy, negative sum.
class ValueLossKernel : public CudaKernel {
 public:
  ValueLossKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                  const FormatPlan& plan)
      : CudaKernel(spec, geometry, plan),
        kind_(geometry.op == Op::kMeanSquaredError     ? RowSum::kSquaredError
              : geometry.op == Op::kBinaryCrossEntropy ? RowSum::kBinaryCrossEntropy
                                                       : RowSum::kSum),
        factor_(kind_ == RowSum::kSum ? -1.0 : 1.0 / static_cast<double>(geometry.inputs)) {
    backward_reads_input_.assign(spec.input_shapes.size(), spec.training && kind_ != RowSum::kSum);
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    const void* const labels = kind_ == RowSum::kSum ? nullptr : args.inputs[1];
    return STARLING_CUDA_STATUS(LaunchRowSums(
        kind_, static_cast<const float*>(args.inputs[0]), static_cast<const float*>(labels),
        static_cast<float>(factor_), geometry_.batch, geometry_.inputs,
        static_cast<float*>(args.output), stream.get()));
  }
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return absl::OkStatus();
    const int64_t batch = geometry_.mean_reduction ? args.global_batch : 1;
    const auto scale =
        static_cast<float>(ScaleArgument(args) * factor_ / static_cast<double>(batch));
    float* const gradient = static_cast<float*>(args.grad_inputs[0]);
    const int64_t count = geometry_.batch * geometry_.inputs;
    if (kind_ == RowSum::kSum) {
      return STARLING_CUDA_STATUS(LaunchFill(scale, args.values, gradient, count, stream.get()));
    }
    return STARLING_CUDA_STATUS(LaunchRowSumsGradient(
        kind_, static_cast<const float*>(args.inputs[0]), static_cast<const float*>(args.inputs[1]),
        scale, args.values, count, gradient, stream.get()));
  }

 private:
  const RowSum kind_;
  const double factor_;  // multiplies a sample's sum
};

}  // namespace

const MakeCudaKernel kMakeLayerNorm = MakeKernel<LayerNormKernel>;
const MakeCudaKernel kMakeTable = MakeKernel<TableKernel>;
const MakeCudaKernel kMakePositionEmbedding = MakeKernel<PositionKernel>;
const MakeCudaKernel kMakeSoftmaxCrossEntropy = MakeKernel<SoftmaxCrossEntropyKernel>;
const MakeCudaKernel kMakeValueLoss = MakeKernel<ValueLossKernel>;

}  // namespace starling::cuda
