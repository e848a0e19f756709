// ReLU, GELU, sigmoid, tanh and clip: elementwise, in the input's format.
#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/vector_math.h"

namespace starling {
namespace {

using Op = OperatorGeometry::Op;

constexpr float kRootHalf = 0.70710678118654752f;
constexpr float kDensity = 0.39894228040143268f;    // 1 / sqrt(2 pi)
constexpr float kTanhScale = 0.79788456080286536f;  // sqrt(2 / pi)
constexpr float kTanhCube = 0.044715f;

// NaN propagates, so that it is found: a comparison with NaN is false.
STARLING_VECTOR_CLONES void ReluLoop(const float* x, float* y, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] <= 0 ? 0 : x[i];
}

STARLING_VECTOR_CLONES void GeluLoop(const float* x, float* y, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * (0.5f + 0.5f * VectorErf(x[i] * kRootHalf));
}

STARLING_VECTOR_CLONES void GeluBackwardLoop(const float* x, const float* dy, float* dx,
                                             int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float v = x[i];
    const float phi = 0.5f + 0.5f * VectorErf(v * kRootHalf);
    dx[i] = dy[i] * (phi + v * (kDensity * VectorExp(-0.5f * v * v)));
  }
}

STARLING_VECTOR_CLONES void GeluTanhLoop(const float* x, float* y, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float v = x[i];
    y[i] = v * (0.5f + 0.5f * VectorTanh(kTanhScale * (v + kTanhCube * (v * v * v))));
  }
}

STARLING_VECTOR_CLONES void GeluTanhBackwardLoop(const float* x, const float* dy, float* dx,
                                                 int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float v = x[i];
    const float t = VectorTanh(kTanhScale * (v + kTanhCube * (v * v * v)));
    const float inner = kTanhScale * (1.0f + 3.0f * kTanhCube * (v * v));
    dx[i] = dy[i] * (0.5f + 0.5f * t + 0.5f * v * (1.0f - t * t) * inner);
  }
}

STARLING_VECTOR_CLONES void SigmoidLoop(const float* x, float* y, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = VectorSigmoid(x[i]);
}

STARLING_VECTOR_CLONES void SigmoidBackwardLoop(const float* y, const float* dy, float* dx,
                                                int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] * (y[i] * (1.0f - y[i]));
}

STARLING_VECTOR_CLONES void TanhLoop(const float* x, float* y, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = VectorTanh(x[i]);
}

STARLING_VECTOR_CLONES void TanhBackwardLoop(const float* y, const float* dy, float* dx,
                                             int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] * (1.0f - y[i] * y[i]);
}

STARLING_VECTOR_CLONES void ClipLoop(const float* x, float minimum, float maximum, float* y,
                                     int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float raised = x[i] < minimum ? minimum : x[i];
    y[i] = raised > maximum ? maximum : raised;
  }
}

STARLING_VECTOR_CLONES void ClipBackwardLoop(const float* y, float minimum, float maximum,
                                             const float* dy, float* dx, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float above = y[i] > minimum ? dy[i] : 0.0f;
    dx[i] = y[i] < maximum ? above : 0.0f;
  }
}

// GELU's slope is not a function of its output, so Backward reads the input. The others' is,
// including clip's: the output lies strictly inside the range exactly if the input does.
class Activation : public CpuKernel {
 public:
  Activation(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry),
        minimum_(static_cast<float>(geometry.minimum)),
        maximum_(static_cast<float>(geometry.maximum)) {
    KeepInputFormat();
    const bool gelu = geometry.op == Op::kGelu;
    backward_reads_input_[0] = gelu;
    backward_reads_output_ = !gelu;
    forward_in_place_ok_ = !gelu || !spec.training;
    backward_in_place_ok_ = true;
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    const float* const x = static_cast<const float*>(args.inputs[0]);
    float* const y = static_cast<float*>(args.output);
    ForRanges([&](int64_t at, int64_t count) { ForwardRange(x + at, y + at, count); });
    if (geometry_.op == Op::kSigmoid || geometry_.op == Op::kClip) {  // they change zeros
      ZeroPadding(spec_.output_shape, output_format_, y);
    }
  }

  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    float* const dx = static_cast<float*>(args.grad_inputs[0]);
    if (dx == nullptr) return;
    const float* const kept =
        static_cast<const float*>(backward_reads_output_ ? args.output : args.inputs[0]);
    const float* const dy = static_cast<const float*>(args.grad_output);
    ForRanges(
        [&](int64_t at, int64_t count) { BackwardRange(kept + at, dy + at, dx + at, count); });
  }

 private:
  template <typename Fn>
  void ForRanges(Fn fn) const {
    const int64_t count = static_cast<int64_t>(output_bytes_ / sizeof(float));
    ParallelRanges(spec_.kernel_threads, count, count,
                   [&](int64_t begin, int64_t end) { fn(begin, end - begin); });
  }

  void ForwardRange(const float* x, float* y, int64_t count) const {
    switch (geometry_.op) {
      case Op::kRelu: return ReluLoop(x, y, count);
      case Op::kSigmoid: return SigmoidLoop(x, y, count);
      case Op::kTanh: return TanhLoop(x, y, count);
      case Op::kClip: return ClipLoop(x, minimum_, maximum_, y, count);
      default: break;
    }
    geometry_.approximate ? GeluTanhLoop(x, y, count) : GeluLoop(x, y, count);
  }

  void BackwardRange(const float* kept, const float* dy, float* dx, int64_t count) const {
    switch (geometry_.op) {
      case Op::kRelu: return GateRows(kept, dy, 1, count, count, dx, count);
      case Op::kSigmoid: return SigmoidBackwardLoop(kept, dy, dx, count);
      case Op::kTanh: return TanhBackwardLoop(kept, dy, dx, count);
      case Op::kClip: return ClipBackwardLoop(kept, minimum_, maximum_, dy, dx, count);
      default: break;
    }
    geometry_.approximate ? GeluTanhBackwardLoop(kept, dy, dx, count)
                          : GeluBackwardLoop(kept, dy, dx, count);
  }

  const float minimum_, maximum_;  // clip
};

}  // namespace

const MakeCpuKernel kMakeActivation = MakeKernel<Activation>;

}  // namespace starling
