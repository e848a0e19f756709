// Batched matrix products, all plain; transposed operands are read in place.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

MemoryDesc Transposed(const MemoryDesc& desc) {
  std::vector<int> axes(desc.dims().size());
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int>(i);
  std::swap(axes[axes.size() - 1], axes[axes.size() - 2]);
  return desc.permute_axes(axes);
}

// Y = A B, with A [N, M, K], B [N, K, L] or its transpose, Y [N, M, L]: dA = dY B^T, dB = A^T dY,
// or (B transposed) dY^T A. Leading dimensions are merged into one.
class MatMul : public CpuKernel {
 public:
  MatMul(const OperatorSpec& spec, const OperatorGeometry& geometry, const dnnl::engine& engine)
      : CpuKernel(spec, geometry), scale_(static_cast<float>(geometry.scale)) {
    const int64_t matrices = ElementCount(spec.input_shapes[0]) / geometry.rows / geometry.inputs;
    const MemoryDesc a = PlainDesc({matrices, geometry.rows, geometry.inputs});
    const MemoryDesc y = PlainDesc({matrices, geometry.rows, geometry.outputs});
    const MemoryDesc b = geometry.transpose_b
                             ? PlainDesc({matrices, geometry.outputs, geometry.inputs})
                             : PlainDesc({matrices, geometry.inputs, geometry.outputs});
    const MemoryDesc b_seen = geometry.transpose_b ? Transposed(b) : b;
    ScratchPlan plan;
    forward_ = MakeCall(a, b_seen, y, engine, plan);
    if (spec.training) {
      grad_a_ = MakeCall(y, Transposed(b_seen), a, engine, plan);
      grad_b_ = geometry.transpose_b ? MakeCall(Transposed(y), a, b, engine, plan)
                                     : MakeCall(Transposed(a), y, b, engine, plan);
      backward_reads_input_ = {true, true};
    }
    workspace_bytes_ = plan.size();
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override {
    Multiply(forward_, args.inputs[0], args.inputs[1], args.output, output_bytes_, args.workspace,
             stream);
  }

  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override {
    if (void* const to = args.grad_inputs[0]; to != nullptr) {
      Multiply(grad_a_, args.grad_output, args.inputs[1], to, input_bytes_[0], args.workspace,
               stream);
    }
    if (void* const to = args.grad_inputs[1]; to != nullptr) {
      const void* left = args.inputs[0];
      const void* right = args.grad_output;
      if (geometry_.transpose_b) std::swap(left, right);
      Multiply(grad_b_, left, right, to, input_bytes_[1], args.workspace, stream);
    }
  }

 private:
  static DnnlCall MakeCall(const MemoryDesc& a, const MemoryDesc& b, const MemoryDesc& y,
                           const dnnl::engine& engine, ScratchPlan& plan) {
    const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, b, y), DefaultAttr(), engine);
    return DnnlCall(pd, plan, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, y}});
  }

  void Multiply(DnnlCall& call, const void* a, const void* b, void* y, size_t bytes,
                void* workspace, const CpuStream& stream) const {
    call.Run(stream, workspace, {a, b, y});
    if (scale_ == 1) return;
    float* const elements = static_cast<float*>(y);
    ScaleBy(scale_, elements, static_cast<int64_t>(bytes / sizeof(float)));
  }

  const float scale_;
  DnnlCall forward_, grad_a_, grad_b_;
};

}  // namespace

const MakeCpuKernel kMakeMatMul = MakeKernel<MatMul>;

}  // namespace starling
