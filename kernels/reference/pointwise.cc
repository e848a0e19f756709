#include <cmath>

#include "kernels/reference/families.h"

namespace starling {
namespace {

using Op = OperatorGeometry::Op;

constexpr double kPi = 3.14159265358979323846;

struct Point {
  double y, slope;
};

Point Gelu(double x, bool approximate) {
  if (!approximate) {
    const double phi = 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
    return {x * phi, phi + x * std::exp(-x * x / 2) / std::sqrt(2 * kPi)};
  }
  const double c = std::sqrt(2 / kPi);
  const double t = std::tanh(c * (x + 0.044715 * x * x * x));
  const double inner = c * (1 + 3 * 0.044715 * x * x);
  return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner};
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Point At(const OperatorGeometry& g, double x) {
  switch (g.op) {
    case Op::kGelu: return Gelu(x, g.approximate);
    case Op::kSigmoid: return {Sigmoid(x), Sigmoid(x) * (1 - Sigmoid(x))};
    case Op::kTanh: return {std::tanh(x), 1 - std::tanh(x) * std::tanh(x)};
    default: break;  // clip
  }
  if (x <= g.minimum) return {g.minimum, 0};
  if (x >= g.maximum) return {g.maximum, 0};
  return {x, 1};
}

}  // namespace

Doubles PointwiseForward(const OperatorGeometry& g, const Doubles& x) {
  Doubles y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = At(g, x[i]).y;
  return y;
}

Doubles PointwiseBackward(const OperatorGeometry& g, const Doubles& x, const Doubles& dy) {
  Doubles dx(x.size());
  for (size_t i = 0; i < x.size(); ++i) dx[i] = At(g, x[i]).slope * dy[i];
  return dx;
}

Doubles Product(const Doubles& a, const Doubles& b) {
  Doubles y(a.size());
  for (size_t i = 0; i < a.size(); ++i) y[i] = a[i] * b[i];
  return y;
}

Doubles ElementwiseLossForward(const OperatorGeometry& g, const ReferenceArgs& args) {
  Doubles losses(g.batch, 0.0);
  for (int64_t i = 0; i < g.batch * g.inputs; ++i) {
    const double x = args.inputs[0][i], label = args.inputs[1][i];
    const double loss = g.op == Op::kMeanSquaredError
                            ? (x - label) * (x - label)
                            : std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))) - x * label;
    losses[i / g.inputs] += loss / static_cast<double>(g.inputs);
  }
  return losses;
}

Doubles ElementwiseLossBackward(const OperatorGeometry& g, const ReferenceArgs& args,
                                double scale) {
  Doubles dx(g.batch * g.inputs);
  for (int64_t i = 0; i < g.batch * g.inputs; ++i) {
    const double x = args.inputs[0][i], label = args.inputs[1][i];
    const double slope = g.op == Op::kMeanSquaredError ? 2 * (x - label) : Sigmoid(x) - label;
    dx[i] = slope * scale / static_cast<double>(g.inputs);
  }
  return dx;
}

}  // namespace starling
