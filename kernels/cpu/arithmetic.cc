// Sums and products of two values, in the first one's format.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

STARLING_VECTOR_CLONES void SumLoop(const float* a, const float* b, float* y, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
}

STARLING_VECTOR_CLONES void ProductLoop(const float* a, const float* b, float* y, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = a[i] * b[i];
}

// If the second input's format differs, it is staged in the first one's.
class Arithmetic : public CpuKernel {
 public:
  Arithmetic(const OperatorSpec& spec, const OperatorGeometry& geometry, const dnnl::engine& engine)
      : CpuKernel(spec, geometry), sum_(geometry.op == OperatorGeometry::Op::kAdd) {
    KeepInputFormat();
    const MemoryDesc second = InputDesc(spec, 1);
    ScratchPlan plan;
    input_ = StageIn(second, input_desc_, engine, plan);
    gradient_ = StageOut(input_desc_, second, engine, plan);
    workspace_bytes_ = plan.size();
    forward_in_place_ok_ = sum_ || !spec.training;
    backward_in_place_ok_ = true;
    if (!sum_) backward_reads_input_ = {true, true};
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override {
    Loop(sum_, args.inputs[0], input_.In(args.inputs[1], stream, args.workspace), args.output);
  }

  // The second input's gradient first: the first one's may share grad_output's buffer.
  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override {
    void* const workspace = args.workspace;
    if (void* const to = args.grad_inputs[1]; to != nullptr) {
      Write(args.grad_output, sum_ ? nullptr : args.inputs[0], gradient_.Place(to, workspace));
      gradient_.Out(to, stream, workspace);
    }
    if (void* const to = args.grad_inputs[0]; to != nullptr) {
      const void* second = sum_ ? nullptr : input_.In(args.inputs[1], stream, workspace);
      Write(args.grad_output, second, to);
    }
  }

 private:
  void Loop(bool sum, const void* a, const void* b, void* y) const {
    const float* const first = static_cast<const float*>(a);
    const float* const second = static_cast<const float*>(b);
    float* const to = static_cast<float*>(y);
    const int64_t count = static_cast<int64_t>(output_bytes_ / sizeof(float));
    ParallelRanges(spec_.kernel_threads, count, count, [=](int64_t begin, int64_t end) {
      (sum ? SumLoop : ProductLoop)(first + begin, second + begin, to + begin, end - begin);
    });
  }

  // The gradient of one input: grad_output, times the other input if there is one.
  void Write(const void* grad_output, const void* other, void* to) const {
    if (other != nullptr) {
      Loop(false, grad_output, other, to);
    } else if (to != grad_output) {
      std::memcpy(to, grad_output, output_bytes_);
    }
  }

  const bool sum_;
  Staging input_, gradient_;
};

}  // namespace

const MakeCpuKernel kMakeArithmetic = MakeKernel<Arithmetic>;

}  // namespace starling
