// Losses and row gathering: small, plain, and exact to the last bit of what float can say.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double LossScale(const OperatorGeometry& geometry, const BackwardArgs& args) {
  return geometry.mean_reduction ? 1.0 / static_cast<double>(args.global_batch) : 1.0;
}

class SoftmaxCrossEntropy : public CpuKernel {
 public:
  SoftmaxCrossEntropy(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry) {
    backward_reads_input_ = {true, true};
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    const int32_t* labels = static_cast<const int32_t*>(args.inputs[1]);
    float* losses = static_cast<float*>(args.output);
    for (int64_t n = 0; n < geometry_.batch; ++n) {
      const float* row = Row(args.inputs[0], n);
      losses[n] = InRange(labels[n]) ? static_cast<float>(LogSumExp(row) - row[labels[n]]) : kNan;
    }
  }

  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    float* to = static_cast<float*>(args.grad_inputs[0]);
    if (to == nullptr) return;
    const int32_t* labels = static_cast<const int32_t*>(args.inputs[1]);
    const double scale = LossScale(geometry_, args);
    for (int64_t n = 0; n < geometry_.batch; ++n, to += geometry_.outputs) {
      const float* row = Row(args.inputs[0], n);
      if (!InRange(labels[n])) {
        std::fill_n(to, geometry_.outputs, kNan);
        continue;
      }
      const double log_sum = LogSumExp(row);
      for (int64_t k = 0; k < geometry_.outputs; ++k) {
        const double softmax = std::exp(row[k] - log_sum);
        to[k] = static_cast<float>((softmax - (k == labels[n] ? 1 : 0)) * scale);
      }
    }
  }

 private:
  bool InRange(int32_t label) const { return label >= 0 && label < geometry_.outputs; }
  const float* Row(const void* logits, int64_t n) const {
    return static_cast<const float*>(logits) + n * geometry_.outputs;
  }
  double LogSumExp(const float* row) const {
    const double top = *std::max_element(row, row + geometry_.outputs);
    double sum = 0;
    for (int64_t k = 0; k < geometry_.outputs; ++k) sum += std::exp(row[k] - top);
    return top + std::log(sum);
  }
};

class GatherRows : public CpuKernel {
 public:
  GatherRows(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry) {
    backward_reads_input_ = {true};
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    const int32_t* indices = static_cast<const int32_t*>(args.inputs[0]);
    const int64_t width = geometry_.outputs;
    float* to = static_cast<float*>(args.output);
    for (int64_t n = 0; n < geometry_.batch; ++n, to += width) {
      if (InRange(indices[n])) {
        std::copy_n(args.parameters[0] + indices[n] * width, width, to);
      } else {
        std::fill_n(to, width, kNan);
      }
    }
  }

  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    float* rows = args.grad_parameters[0];
    if (rows == nullptr) return;
    const int32_t* indices = static_cast<const int32_t*>(args.inputs[0]);
    const int64_t width = geometry_.outputs;
    const float* from = static_cast<const float*>(args.grad_output);
    std::fill_n(rows, geometry_.inputs * width, 0.0f);
    for (int64_t n = 0; n < geometry_.batch; ++n, from += width) {
      if (!InRange(indices[n])) continue;
      float* row = rows + indices[n] * width;
      for (int64_t i = 0; i < width; ++i) row[i] += from[i];
    }
  }

 private:
  bool InRange(int32_t index) const { return index >= 0 && index < geometry_.inputs; }
};

class NegativeSum : public CpuKernel {
 public:
  NegativeSum(const OperatorSpec& spec, const OperatorGeometry& geometry,
              const dnnl::engine& engine)
      : CpuKernel(spec, geometry) {
    const MemoryDesc plain = PlainDesc(spec.input_shapes[0]);
    ScratchPlan plan;
    to_plain_ = StageIn(input_desc_, plain, engine, plan);
    from_plain_ = StageOut(plain, input_desc_, engine, plan);
    workspace_bytes_ = plan.size();
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override {
    const int64_t width = geometry_.inputs;
    const float* x =
        static_cast<const float*>(to_plain_.In(args.inputs[0], stream, args.workspace));
    float* losses = static_cast<float*>(args.output);
    for (int64_t n = 0; n < geometry_.batch; ++n, x += width) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum -= x[i];
      losses[n] = static_cast<float>(sum);
    }
  }

  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override {
    void* gradient = args.grad_inputs[0];
    if (gradient == nullptr) return;
    std::fill_n(static_cast<float*>(from_plain_.Place(gradient, args.workspace)),
                geometry_.batch * geometry_.inputs,
                static_cast<float>(-LossScale(geometry_, args)));
    from_plain_.Out(gradient, stream, args.workspace);
  }

 private:
  Staging to_plain_, from_plain_;
};

}  // namespace

CpuKernelPtr MakeSoftmaxCrossEntropy(const OperatorSpec& spec, const OperatorGeometry& geometry) {
  return std::make_unique<SoftmaxCrossEntropy>(spec, geometry);
}

CpuKernelPtr MakeGatherRows(const OperatorSpec& spec, const OperatorGeometry& geometry) {
  return std::make_unique<GatherRows>(spec, geometry);
}

CpuKernelPtr MakeNegativeSum(const OperatorSpec& spec, const OperatorGeometry& geometry,
                             const dnnl::engine& engine) {
  return std::make_unique<NegativeSum>(spec, geometry, engine);
}

}  // namespace starling
