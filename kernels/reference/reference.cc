#include "kernels/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/geometry.h"
#include "kernels/random.h"
#include "kernels/reference/families.h"
#include "kernels/reference/planes.h"

namespace starling {
namespace {

using Op = OperatorGeometry::Op;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Doubles LinearSums(const OperatorGeometry& g, const ReferenceArgs& args) {
  const Doubles& x = args.inputs[0];
  const Doubles& w = args.parameters[0];
  Doubles y(g.rows * g.outputs);
  for (int64_t n = 0; n < g.rows; ++n) {
    for (int64_t o = 0; o < g.outputs; ++o) {
      double sum = g.bias ? args.parameters[1][o] : 0;
      for (int64_t i = 0; i < g.inputs; ++i) sum += x[n * g.inputs + i] * w[o * g.inputs + i];
      y[n * g.outputs + o] = sum;
    }
  }
  return y;
}

// The GELU that follows a linear.
OperatorGeometry GeluBehind() {
  OperatorGeometry gelu;
  gelu.op = Op::kGelu;
  gelu.approximate = true;
  return gelu;
}

Doubles LinearForward(const OperatorGeometry& g, const ReferenceArgs& args) {
  const Doubles sums = LinearSums(g, args);
  return g.gelu ? PointwiseForward(GeluBehind(), sums) : sums;
}

ReferenceGradients LinearBackward(const OperatorGeometry& g, const ReferenceArgs& args,
                                  Doubles dy) {
  if (g.gelu) dy = PointwiseBackward(GeluBehind(), LinearSums(g, args), dy);
  const Doubles& x = args.inputs[0];
  const Doubles& w = args.parameters[0];
  Doubles dx(x.size(), 0.0), dw(w.size(), 0.0), db(g.outputs, 0.0);
  for (int64_t n = 0; n < g.rows; ++n) {
    for (int64_t o = 0; o < g.outputs; ++o) {
      const double d = dy[n * g.outputs + o];
      db[o] += d;
      for (int64_t i = 0; i < g.inputs; ++i) {
        dx[n * g.inputs + i] += d * w[o * g.inputs + i];
        dw[o * g.inputs + i] += d * x[n * g.inputs + i];
      }
    }
  }
  ReferenceGradients gradients = {.inputs = {dx}, .parameters = {dw}};
  if (g.bias) gradients.parameters.push_back(db);
  return gradients;
}

// Calls visit(element, channel).
template <typename Visit>
void ForEachChannelElement(const OperatorGeometry& g, Visit visit) {
  for (int64_t i = 0; i < g.batch * g.inputs * g.spatial; ++i) visit(i, i / g.spatial % g.inputs);
}

struct Statistics {
  Doubles mean, variance;
};

Statistics BatchStatistics(const OperatorGeometry& g, const Doubles& x) {
  const double count = static_cast<double>(g.batch * g.spatial);
  Statistics s = {Doubles(g.inputs, 0.0), Doubles(g.inputs, 0.0)};
  ForEachChannelElement(g, [&](int64_t i, int64_t c) { s.mean[c] += x[i] / count; });
  ForEachChannelElement(g, [&](int64_t i, int64_t c) {
    s.variance[c] += (x[i] - s.mean[c]) * (x[i] - s.mean[c]) / count;
  });
  return s;
}

Doubles BatchNormForward(const OperatorGeometry& g, bool training, const ReferenceArgs& args) {
  const Doubles& x = args.inputs[0];
  const Statistics s =
      training ? BatchStatistics(g, x) : Statistics{args.parameters[2], args.parameters[3]};
  Doubles y(x.size());
  ForEachChannelElement(g, [&](int64_t i, int64_t c) {
    const double normal = (x[i] - s.mean[c]) / std::sqrt(s.variance[c] + g.epsilon);
    y[i] = normal * args.parameters[0][c] + args.parameters[1][c];
    if (args.inputs.size() > 1) y[i] += args.inputs[1][i];
    if (g.relu && y[i] < 0) y[i] = 0;
  });
  return y;
}

ReferenceGradients BatchNormBackward(const OperatorGeometry& g, const ReferenceArgs& args,
                                     Doubles dy) {
  const Doubles& x = args.inputs[0];
  if (g.relu) {
    const Doubles y = BatchNormForward(g, /*training=*/true, args);
    for (size_t i = 0; i < y.size(); ++i) dy[i] = y[i] > 0 ? dy[i] : 0;
  }
  Statistics s = BatchStatistics(g, x);
  const double count = static_cast<double>(g.batch * g.spatial);
  Doubles dx(x.size()), dweight(g.inputs, 0.0), dbias(g.inputs, 0.0);
  auto normal = [&](int64_t i, int64_t c) {
    return (x[i] - s.mean[c]) / std::sqrt(s.variance[c] + g.epsilon);
  };
  ForEachChannelElement(g, [&](int64_t i, int64_t c) {
    dweight[c] += dy[i] * normal(i, c);
    dbias[c] += dy[i];
  });
  ForEachChannelElement(g, [&](int64_t i, int64_t c) {
    dx[i] = args.parameters[0][c] / std::sqrt(s.variance[c] + g.epsilon) *
            (dy[i] - dbias[c] / count - normal(i, c) * dweight[c] / count);
  });
  const double share = static_cast<double>(g.batch) / static_cast<double>(args.global_batch);
  for (double& m : s.mean) m *= share;
  for (double& v : s.variance) v *= share;
  ReferenceGradients gradients = {.inputs = {dx},
                                  .parameters = {dweight, dbias, s.mean, s.variance}};
  if (args.inputs.size() > 1) gradients.inputs.push_back(dy);
  return gradients;
}

// For both directions: dropout is linear.
Doubles Dropout(const OperatorGeometry& g, const OperatorSpec& spec, const RandomKey& key,
                Doubles x) {
  if (!spec.training) return x;
  std::vector<uint8_t> keep(x.size());
  DropoutMask(key, g.rate, static_cast<int64_t>(x.size()), keep.data());
  const Shape& shape = spec.input_shapes[0];
  const int64_t channels = shape.size() == 4 ? shape[1] : 1;
  const int64_t plane = shape.size() == 4 ? shape[2] * shape[3] : g.inputs;
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    const int64_t n = i / plane / channels, c = i / plane % channels, at = i % plane;
    x[i] = keep[(n * plane + at) * channels + c] ? x[i] / (1 - g.rate) : 0;
  }
  return x;
}

bool InRange(double label, int64_t end) { return label >= 0 && label < static_cast<double>(end); }

// log(sum(exp(row))) without overflow.
double LogSumExp(const double* row, int64_t count) {
  const double top = *std::max_element(row, row + count);
  double sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += std::exp(row[k] - top);
  return top + std::log(sum);
}

Doubles CrossEntropyForward(const OperatorGeometry& g, const ReferenceArgs& args) {
  Doubles losses(g.batch, 0.0);
  const int64_t positions = g.rows / g.batch;
  for (int64_t r = 0; r < g.rows; ++r) {
    const double* row = &args.inputs[0][r * g.outputs];
    const double label = args.inputs[1][r];
    losses[r / positions] += InRange(label, g.outputs)
                                 ? (LogSumExp(row, g.outputs) - row[static_cast<int64_t>(label)]) /
                                       static_cast<double>(positions)
                                 : kNan;
  }
  return losses;
}

double LossScale(const OperatorGeometry& g, const ReferenceArgs& args) {
  return g.mean_reduction ? 1.0 / static_cast<double>(args.global_batch) : 1.0;
}

Doubles CrossEntropyBackward(const OperatorGeometry& g, const ReferenceArgs& args) {
  Doubles dx(g.rows * g.outputs);
  const double scale =
      LossScale(g, args) * static_cast<double>(g.batch) / static_cast<double>(g.rows);
  for (int64_t r = 0; r < g.rows; ++r) {
    const double* row = &args.inputs[0][r * g.outputs];
    const double label = args.inputs[1][r];
    const double log_sum = LogSumExp(row, g.outputs);
    for (int64_t k = 0; k < g.outputs; ++k) {
      const double softmax = std::exp(row[k] - log_sum);
      const double target = label == static_cast<double>(k) ? 1 : 0;
      dx[r * g.outputs + k] = InRange(label, g.outputs) ? (softmax - target) * scale : kNan;
    }
  }
  return dx;
}

Doubles GatherForward(const OperatorGeometry& g, const ReferenceArgs& args) {
  Doubles y(g.rows * g.outputs);
  for (int64_t i = 0; i < g.rows * g.outputs; ++i) {
    const double row = args.inputs[0][i / g.outputs];
    y[i] = InRange(row, g.inputs)
               ? args.parameters[0][static_cast<int64_t>(row) * g.outputs + i % g.outputs]
               : kNan;
  }
  return y;
}

Doubles GatherBackward(const OperatorGeometry& g, const ReferenceArgs& args, const Doubles& dy) {
  Doubles dw(args.parameters[0].size(), 0.0);
  for (int64_t i = 0; i < g.rows * g.outputs; ++i) {
    const double row = args.inputs[0][i / g.outputs];
    if (!InRange(row, g.inputs)) continue;
    dw[static_cast<int64_t>(row) * g.outputs + i % g.outputs] += dy[i];
  }
  return dw;
}

Doubles NegativeSum(const OperatorGeometry& g, const Doubles& x) {
  Doubles losses(g.batch, 0.0);
  for (int64_t i = 0; i < g.batch * g.inputs; ++i) losses[i / g.inputs] -= x[i];
  return losses;
}

Doubles Sum(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Doubles ReluForward(Doubles x) {
  for (double& v : x) v = v > 0 ? v : 0;
  return x;
}

Doubles ReluBackward(const Doubles& x, Doubles dy) {
  for (size_t i = 0; i < x.size(); ++i) dy[i] = x[i] > 0 ? dy[i] : 0;
  return dy;
}

}  // namespace

absl::StatusOr<Doubles> ReferenceForward(const OperatorSpec& spec, const ReferenceArgs& args) {
  absl::StatusOr<OperatorGeometry> g = ResolveGeometry(spec);
  if (!g.ok()) return g.status();
  const Doubles& x = args.inputs[0];
  switch (g->op) {
    case Op::kConv2d: return ConvForward(g->plane, args);
    case Op::kMaxPool2d: return MaxPoolForward(g->plane, x);
    case Op::kAvgPool2d: return AvgPoolForward(g->plane, x);
    case Op::kGlobalAvgPool2d: return GlobalAvgPoolForward(*g, x);
    case Op::kLinear: return LinearForward(*g, args);
    case Op::kBatchNorm: return BatchNormForward(*g, spec.training, args);
    case Op::kLayerNorm: return LayerNormForward(*g, args);
    case Op::kRelu: return ReluForward(x);
    case Op::kGelu:
    case Op::kSigmoid:
    case Op::kTanh:
    case Op::kClip: return PointwiseForward(*g, x);
    case Op::kAdd: return Sum(x, args.inputs[1]);
    case Op::kMul: return Product(x, args.inputs[1]);
    case Op::kConcat: return ConcatForward(*g, spec, args);
    case Op::kSlice: return SliceForward(*g, spec, x);
    case Op::kTranspose: return TransposeForward(*g, spec, x);
    case Op::kReshape:
    case Op::kDropout: return Dropout(*g, spec, args.random, x);
    case Op::kFlatten: return x;
    case Op::kSoftmaxCrossEntropy: return CrossEntropyForward(*g, args);
    case Op::kMeanSquaredError:
    case Op::kBinaryCrossEntropy: return ElementwiseLossForward(*g, args);
    case Op::kEmbedding:
    case Op::kGatherRows: return GatherForward(*g, args);
    case Op::kPositionEmbedding: return PositionForward(*g, args);
    case Op::kMatMul: return MatMulForward(*g, args);
    case Op::kAttention: return AttentionForward(*g, args);
    case Op::kNegativeSum: return NegativeSum(*g, x);
  }
  return absl::InternalError("an operator without a reference");
}

absl::StatusOr<ReferenceGradients> ReferenceBackward(const OperatorSpec& spec,
                                                     const ReferenceArgs& args,
                                                     const Doubles& grad_output) {
  absl::StatusOr<OperatorGeometry> g = ResolveGeometry(spec);
  if (!g.ok()) return g.status();
  const Doubles& x = args.inputs[0];
  using Gradients = ReferenceGradients;
  switch (g->op) {
    case Op::kConv2d: return ConvBackward(g->plane, args, grad_output);
    case Op::kMaxPool2d: return Gradients{{MaxPoolBackward(g->plane, x, grad_output)}, {}};
    case Op::kAvgPool2d: return Gradients{{AvgPoolBackward(g->plane, grad_output)}, {}};
    case Op::kGlobalAvgPool2d: return Gradients{{GlobalAvgPoolBackward(*g, grad_output)}, {}};
    case Op::kLinear: return LinearBackward(*g, args, grad_output);
    case Op::kBatchNorm: return BatchNormBackward(*g, args, grad_output);
    case Op::kLayerNorm: return LayerNormBackward(*g, args, grad_output);
    case Op::kGelu:
    case Op::kSigmoid:
    case Op::kTanh:
    case Op::kClip: return Gradients{{PointwiseBackward(*g, x, grad_output)}, {}};
    case Op::kAdd: return Gradients{{grad_output, grad_output}, {}};
    case Op::kMul:
      return Gradients{{Product(grad_output, args.inputs[1]), Product(grad_output, x)}, {}};
    case Op::kConcat: return ConcatBackward(*g, spec, grad_output);
    case Op::kSlice: return Gradients{{SliceBackward(*g, spec, grad_output)}, {}};
    case Op::kTranspose: return Gradients{{TransposeBackward(*g, spec, grad_output)}, {}};
    case Op::kRelu: return Gradients{{ReluBackward(x, grad_output)}, {}};
    case Op::kDropout: return Gradients{{Dropout(*g, spec, args.random, grad_output)}, {}};
    case Op::kReshape:
    case Op::kFlatten: return Gradients{{grad_output}, {}};
    case Op::kSoftmaxCrossEntropy: return Gradients{{CrossEntropyBackward(*g, args), {}}, {}};
    case Op::kMeanSquaredError:
    case Op::kBinaryCrossEntropy:
      return Gradients{{ElementwiseLossBackward(*g, args, LossScale(*g, args)), {}}, {}};
    case Op::kPositionEmbedding: return PositionBackward(*g, grad_output);
    case Op::kMatMul: return MatMulBackward(*g, args, grad_output);
    case Op::kAttention: return AttentionBackward(*g, args, grad_output);
    case Op::kEmbedding:
    case Op::kGatherRows: return Gradients{{{}}, {GatherBackward(*g, args, grad_output)}};
    case Op::kNegativeSum: return Gradients{{Doubles(x.size(), -LossScale(*g, args))}, {}};
  }
  return absl::InternalError("an operator without a reference");
}

}  // namespace starling
