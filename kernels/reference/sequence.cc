#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/reference/families.h"

namespace starling {
namespace {

// One row's normalised values; returns 1 / sqrt(variance + epsilon).
double Normalize(const double* row, int64_t count, double epsilon, Doubles* normal) {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < count; ++i) mean += row[i] / static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    variance += (row[i] - mean) * (row[i] - mean) / static_cast<double>(count);
  }
  const double inverse = 1 / std::sqrt(variance + epsilon);
  for (int64_t i = 0; i < count; ++i) (*normal)[i] = (row[i] - mean) * inverse;
  return inverse;
}

// Calls visit(output index, index in a, index in b) for each product.
template <typename Visit>
void ForEachMatrixProduct(const OperatorGeometry& g, int64_t outputs, Visit visit) {
  for (int64_t out = 0; out < outputs; ++out) {
    const int64_t l = out % g.outputs, row = out / g.outputs, matrix = row / g.rows;
    for (int64_t k = 0; k < g.inputs; ++k) {
      const int64_t b = g.transpose_b ? (matrix * g.outputs + l) * g.inputs + k
                                      : (matrix * g.inputs + k) * g.outputs + l;
      visit(out, row * g.inputs + k, b);
    }
  }
}

// One head of one sample: element (t, c) of query, key, value and output is at base + t * D + c.
struct Head {
  int64_t base, width;
};

template <typename Visit>
void ForEachHead(const OperatorGeometry& g, Visit visit) {
  const int64_t width = g.inputs / g.heads;
  for (int64_t n = 0; n < g.batch; ++n) {
    for (int64_t h = 0; h < g.heads; ++h) visit(Head{n * g.rows * g.inputs + h * width, width});
  }
}

// softmax(q K^T / sqrt(width)) of query row t.
Doubles Weights(const OperatorGeometry& g, const Head& head, const ReferenceArgs& args, int64_t t) {
  Doubles weights(g.causal ? t + 1 : g.rows, 0.0);
  double top = -INFINITY, sum = 0;
  for (size_t s = 0; s < weights.size(); ++s) {
    for (int64_t c = 0; c < head.width; ++c) {
      weights[s] += args.inputs[0][head.base + t * g.inputs + c] *
                    args.inputs[1][head.base + static_cast<int64_t>(s) * g.inputs + c];
    }
    weights[s] /= std::sqrt(static_cast<double>(head.width));
    top = std::max(top, weights[s]);
  }
  for (double& w : weights) sum += w = std::exp(w - top);
  for (double& w : weights) w /= sum;
  return weights;
}

// Splits packed input into query, key and value.
ReferenceArgs Unpacked(const OperatorGeometry& g, ReferenceArgs args) {
  if (!g.packed) return args;
  const Doubles all = std::move(args.inputs[0]);
  args.inputs.assign(3, {});
  for (size_t i = 0; i < all.size(); ++i) {
    args.inputs[i / g.inputs % 3].push_back(all[i]);
  }
  return args;
}

}  // namespace

Doubles LayerNormForward(const OperatorGeometry& g, const ReferenceArgs& args) {
  Doubles y(args.inputs[0].size()), normal(g.inputs);
  for (int64_t r = 0; r < g.rows; ++r) {
    Normalize(&args.inputs[0][r * g.inputs], g.inputs, g.epsilon, &normal);
    for (int64_t i = 0; i < g.inputs; ++i) {
      y[r * g.inputs + i] = normal[i] * args.parameters[0][i] + args.parameters[1][i];
    }
  }
  return y;
}

ReferenceGradients LayerNormBackward(const OperatorGeometry& g, const ReferenceArgs& args,
                                     const Doubles& dy) {
  Doubles dx(dy.size()), dweight(g.inputs, 0.0), dbias(g.inputs, 0.0), normal(g.inputs);
  const double count = static_cast<double>(g.inputs);
  for (int64_t r = 0; r < g.rows; ++r) {
    const double inverse = Normalize(&args.inputs[0][r * g.inputs], g.inputs, g.epsilon, &normal);
    double sum = 0, product = 0;
    for (int64_t i = 0; i < g.inputs; ++i) {
      const double d = dy[r * g.inputs + i];
      dweight[i] += d * normal[i];
      dbias[i] += d;
      sum += d * args.parameters[0][i];
      product += d * args.parameters[0][i] * normal[i];
    }
    for (int64_t i = 0; i < g.inputs; ++i) {
      const double d = dy[r * g.inputs + i] * args.parameters[0][i];
      dx[r * g.inputs + i] = inverse * (d - sum / count - normal[i] * product / count);
    }
  }
  return {.inputs = {dx}, .parameters = {dweight, dbias}};
}

Doubles PositionForward(const OperatorGeometry& g, const ReferenceArgs& args) {
  Doubles y = args.inputs[0];
  const size_t sample = g.rows * g.outputs;
  for (size_t i = 0; i < y.size(); ++i) y[i] += args.parameters[0][i % sample];
  return y;
}

ReferenceGradients PositionBackward(const OperatorGeometry& g, const Doubles& dy) {
  Doubles dw(g.inputs * g.outputs, 0.0);
  const size_t sample = g.rows * g.outputs;
  for (size_t i = 0; i < dy.size(); ++i) dw[i % sample] += dy[i];
  return {.inputs = {dy}, .parameters = {dw}};
}

Doubles MatMulForward(const OperatorGeometry& g, const ReferenceArgs& args) {
  const Doubles& a = args.inputs[0];
  const Doubles& b = args.inputs[1];
  Doubles y(a.size() / g.inputs * g.outputs, 0.0);
  ForEachMatrixProduct(g, static_cast<int64_t>(y.size()),
                       [&](int64_t out, int64_t i, int64_t j) { y[out] += g.scale * a[i] * b[j]; });
  return y;
}

ReferenceGradients MatMulBackward(const OperatorGeometry& g, const ReferenceArgs& args,
                                  const Doubles& dy) {
  const Doubles& a = args.inputs[0];
  const Doubles& b = args.inputs[1];
  Doubles da(a.size(), 0.0), db(b.size(), 0.0);
  ForEachMatrixProduct(g, static_cast<int64_t>(dy.size()), [&](int64_t out, int64_t i, int64_t j) {
    da[i] += g.scale * dy[out] * b[j];
    db[j] += g.scale * dy[out] * a[i];
  });
  return {.inputs = {da, db}, .parameters = {}};
}

Doubles AttentionForward(const OperatorGeometry& g, const ReferenceArgs& given) {
  const ReferenceArgs args = Unpacked(g, given);
  Doubles y(args.inputs[0].size(), 0.0);
  ForEachHead(g, [&](const Head& head) {
    for (int64_t t = 0; t < g.rows; ++t) {
      const Doubles weights = Weights(g, head, args, t);
      for (size_t s = 0; s < weights.size(); ++s) {
        for (int64_t c = 0; c < head.width; ++c) {
          y[head.base + t * g.inputs + c] +=
              weights[s] * args.inputs[2][head.base + static_cast<int64_t>(s) * g.inputs + c];
        }
      }
    }
  });
  return y;
}

ReferenceGradients AttentionBackward(const OperatorGeometry& g, const ReferenceArgs& given,
                                     const Doubles& dy) {
  const ReferenceArgs args = Unpacked(g, given);
  const size_t size = args.inputs[0].size();
  Doubles dq(size, 0.0), dk(size, 0.0), dv(size, 0.0);
  ForEachHead(g, [&](const Head& head) {
    for (int64_t t = 0; t < g.rows; ++t) {
      const Doubles weights = Weights(g, head, args, t);
      const int64_t row = head.base + t * g.inputs;
      Doubles slopes(weights.size(), 0.0);
      double mean = 0;
      for (size_t s = 0; s < weights.size(); ++s) {
        const int64_t other = head.base + static_cast<int64_t>(s) * g.inputs;
        for (int64_t c = 0; c < head.width; ++c) {
          slopes[s] += dy[row + c] * args.inputs[2][other + c];
          dv[other + c] += weights[s] * dy[row + c];
        }
        mean += weights[s] * slopes[s];
      }
      for (size_t s = 0; s < weights.size(); ++s) {
        const int64_t other = head.base + static_cast<int64_t>(s) * g.inputs;
        const double d =
            weights[s] * (slopes[s] - mean) / std::sqrt(static_cast<double>(head.width));
        for (int64_t c = 0; c < head.width; ++c) {
          dq[row + c] += d * args.inputs[1][other + c];
          dk[other + c] += d * args.inputs[0][row + c];
        }
      }
    }
  });
  if (!g.packed) return {.inputs = {dq, dk, dv}, .parameters = {}};
  Doubles all;
  for (size_t row = 0; row < size; row += g.inputs) {
    for (const Doubles* part : {&dq, &dk, &dv}) {
      all.insert(all.end(), part->begin() + row, part->begin() + row + g.inputs);
    }
  }
  return {.inputs = {all}, .parameters = {}};
}

}  // namespace starling
