// Losses: one number per sample, where gradients start.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double LossScale(const OperatorGeometry& geometry, const BackwardArgs& args) {
  const double scale = args.values != nullptr ? args.values->loss_scale : args.loss_scale;
  return geometry.mean_reduction ? scale / static_cast<double>(args.global_batch) : scale;
}

// `saved` holds the maximum of each row of logits and the sum of exp(logit - maximum).
class SoftmaxCrossEntropy : public CpuKernel {
 public:
  SoftmaxCrossEntropy(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry), positions_(geometry.rows / geometry.batch) {
    backward_reads_input_ = {true, true};
    saved_bytes_ = spec.training ? 2 * geometry.rows * sizeof(float) : 0;
    workspace_bytes_ = geometry.batch * geometry.outputs * sizeof(float);
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    const int32_t* labels = static_cast<const int32_t*>(args.inputs[1]);
    ForSamples([&](int64_t n) {
      float* const scratch = static_cast<float*>(args.workspace) + n * geometry_.outputs;
      double loss = 0;
      for (int64_t r = n * positions_; r < (n + 1) * positions_; ++r) {
        const float* row = Row(args.inputs[0], r);
        const float top = MaximumOf(row, geometry_.outputs);
        ExpOf(row, top, scratch, geometry_.outputs);
        const float sum = SumOf(scratch, geometry_.outputs);
        loss += InRange(labels[r]) ? std::log(double{sum}) + top - row[labels[r]] : kNan;
        if (!spec_.training) continue;
        float* const saved = static_cast<float*>(args.saved) + 2 * r;
        saved[0] = top;
        saved[1] = sum;
      }
      static_cast<float*>(args.output)[n] =
          static_cast<float>(loss / static_cast<double>(positions_));
    });
  }

  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    if (args.grad_inputs[0] == nullptr) return;
    const int32_t* labels = static_cast<const int32_t*>(args.inputs[1]);
    const double scale = LossScale(geometry_, args) / static_cast<double>(positions_);
    ForSamples([&](int64_t n) {
      for (int64_t r = n * positions_; r < (n + 1) * positions_; ++r) {
        const float* const saved = static_cast<const float*>(args.saved) + 2 * r;
        float* const to = static_cast<float*>(args.grad_inputs[0]) + r * geometry_.outputs;
        if (!InRange(labels[r])) {
          std::fill_n(to, geometry_.outputs, kNan);
          continue;
        }
        const float* const row = Row(args.inputs[0], r);
        ExpOf(row, saved[0], to, geometry_.outputs);
        const double label = double{to[labels[r]]} / saved[1] - 1;
        ScaleBy(static_cast<float>(scale / saved[1]), to, geometry_.outputs);
        to[labels[r]] = static_cast<float>(label * scale);
      }
    });
  }

 private:
  bool InRange(int32_t label) const { return label >= 0 && label < geometry_.outputs; }
  const float* Row(const void* logits, int64_t r) const {
    return static_cast<const float*>(logits) + r * geometry_.outputs;
  }
  template <typename Fn>
  void ForSamples(Fn fn) const {
    ParallelRanges(spec_.kernel_threads, geometry_.batch, geometry_.rows * geometry_.outputs,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t n = begin; n < end; ++n) fn(n);
                   });
  }

  const int64_t positions_;  // of a sample
};

// Mean squared error and binary cross-entropy, both in double, element by element.
class ElementwiseLoss : public CpuKernel {
 public:
  ElementwiseLoss(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry),
        squared_(geometry.op == OperatorGeometry::Op::kMeanSquaredError) {
    backward_reads_input_ = {true, true};
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    const float* x = static_cast<const float*>(args.inputs[0]);
    const float* labels = static_cast<const float*>(args.inputs[1]);
    float* const losses = static_cast<float*>(args.output);
    for (int64_t n = 0; n < geometry_.batch; ++n) {
      double sum = 0;
      for (int64_t i = 0; i < geometry_.inputs; ++i, ++x, ++labels) sum += Loss(*x, *labels);
      losses[n] = static_cast<float>(sum / static_cast<double>(geometry_.inputs));
    }
  }

  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    float* const to = static_cast<float*>(args.grad_inputs[0]);
    if (to == nullptr) return;
    const float* const x = static_cast<const float*>(args.inputs[0]);
    const float* const labels = static_cast<const float*>(args.inputs[1]);
    const double scale = LossScale(geometry_, args) / static_cast<double>(geometry_.inputs);
    for (int64_t i = 0; i < geometry_.batch * geometry_.inputs; ++i) {
      to[i] = static_cast<float>(Slope(x[i], labels[i]) * scale);
    }
  }

 private:
  double Loss(double x, double label) const {
    if (squared_) return (x - label) * (x - label);
    const double positive = x > 0 ? x : x < 0 ? 0 : x;  // NaN propagates
    return positive + std::log1p(std::exp(-std::abs(x))) - x * label;
  }
  double Slope(double x, double label) const {
    return squared_ ? 2 * (x - label) : 1 / (1 + std::exp(-x)) - label;
  }

  const bool squared_;
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

const MakeCpuKernel kMakeSoftmaxCrossEntropy = MakeKernel<SoftmaxCrossEntropy>;
const MakeCpuKernel kMakeElementwiseLoss = MakeKernel<ElementwiseLoss>;
const MakeCpuKernel kMakeNegativeSum = MakeKernel<NegativeSum>;

}  // namespace starling
