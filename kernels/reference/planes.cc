#include "kernels/reference/planes.h"

namespace starling {
namespace {

int64_t InIndex(const Geometry2d& p, int64_t n, int64_t c, int64_t y, int64_t x) {
  return ((n * p.in_channels + c) * p.in_height + y) * p.in_width + x;
}

// Calls visit(output index, input index, weight index) for each product of a convolution, without
// padding.
template <typename Visit>
void ForEachProduct(const Geometry2d& p, Visit visit) {
  const int64_t in_group = p.in_channels / p.groups;
  const int64_t out_group = p.out_channels / p.groups;
  int64_t out = 0;
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t o = 0; o < p.out_channels; ++o) {
      for (int64_t oy = 0; oy < p.out_height; ++oy) {
        for (int64_t ox = 0; ox < p.out_width; ++ox, ++out) {
          for (int64_t c = 0; c < in_group; ++c) {
            for (int64_t ky = 0; ky < p.kernel_height; ++ky) {
              for (int64_t kx = 0; kx < p.kernel_width; ++kx) {
                const int64_t y = oy * p.stride_height - p.padding_height + ky * p.dilation_height;
                const int64_t x = ox * p.stride_width - p.padding_width + kx * p.dilation_width;
                if (y < 0 || y >= p.in_height || x < 0 || x >= p.in_width) continue;
                const int64_t in = InIndex(p, n, o / out_group * in_group + c, y, x);
                const int64_t w = ((o * in_group + c) * p.kernel_height + ky) * p.kernel_width + kx;
                visit(out, in, w);
              }
            }
          }
        }
      }
    }
  }
}

// Calls visit(output index, input index) for each element of each pooling window, row by row.
template <typename Visit>
void ForEachWindowElement(const Geometry2d& p, Visit visit) {
  int64_t out = 0;
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t c = 0; c < p.in_channels; ++c) {
      for (int64_t oy = 0; oy < p.out_height; ++oy) {
        for (int64_t ox = 0; ox < p.out_width; ++ox, ++out) {
          for (int64_t ky = 0; ky < p.kernel_height; ++ky) {
            for (int64_t kx = 0; kx < p.kernel_width; ++kx) {
              const int64_t y = oy * p.stride_height - p.padding_height + ky;
              const int64_t x = ox * p.stride_width - p.padding_width + kx;
              if (y < 0 || y >= p.in_height || x < 0 || x >= p.in_width) continue;
              visit(out, InIndex(p, n, c, y, x));
            }
          }
        }
      }
    }
  }
}

int64_t OutCount(const Geometry2d& p) {
  return p.batch * p.out_channels * p.out_height * p.out_width;
}

std::vector<int64_t> FirstMaxima(const Geometry2d& p, const Doubles& x) {
  std::vector<int64_t> at(OutCount(p), -1);
  ForEachWindowElement(p, [&](int64_t out, int64_t in) {
    if (at[out] < 0 || x[in] > x[at[out]]) at[out] = in;
  });
  return at;
}

}  // namespace

Doubles ConvForward(const Geometry2d& p, const ReferenceArgs& args) {
  Doubles y(OutCount(p), 0.0);
  const int64_t plane = p.out_height * p.out_width;
  if (p.bias) {
    for (int64_t i = 0; i < OutCount(p); ++i) {
      y[i] = args.parameters[1][i / plane % p.out_channels];
    }
  }
  ForEachProduct(p, [&](int64_t out, int64_t in, int64_t w) {
    y[out] += args.inputs[0][in] * args.parameters[0][w];
  });
  return y;
}

ReferenceGradients ConvBackward(const Geometry2d& p, const ReferenceArgs& args, const Doubles& dy) {
  Doubles dx(args.inputs[0].size(), 0.0);
  Doubles dw(args.parameters[0].size(), 0.0);
  ForEachProduct(p, [&](int64_t out, int64_t in, int64_t w) {
    dx[in] += dy[out] * args.parameters[0][w];
    dw[w] += dy[out] * args.inputs[0][in];
  });
  ReferenceGradients gradients = {.inputs = {dx}, .parameters = {dw}};
  if (p.bias) {
    Doubles db(p.out_channels, 0.0);
    const int64_t plane = p.out_height * p.out_width;
    for (int64_t i = 0; i < OutCount(p); ++i) db[i / plane % p.out_channels] += dy[i];
    gradients.parameters.push_back(db);
  }
  return gradients;
}

Doubles MaxPoolForward(const Geometry2d& p, const Doubles& x) {
  const std::vector<int64_t> at = FirstMaxima(p, x);
  Doubles y(at.size());
  for (size_t i = 0; i < at.size(); ++i) y[i] = x[at[i]];
  return y;
}

Doubles MaxPoolBackward(const Geometry2d& p, const Doubles& x, const Doubles& dy) {
  const std::vector<int64_t> at = FirstMaxima(p, x);
  Doubles dx(x.size(), 0.0);
  for (size_t i = 0; i < at.size(); ++i) dx[at[i]] += dy[i];
  return dx;
}

Doubles AvgPoolForward(const Geometry2d& p, const Doubles& x) {
  Doubles y(OutCount(p), 0.0);
  const double share = 1.0 / static_cast<double>(p.kernel_height * p.kernel_width);
  ForEachWindowElement(p, [&](int64_t out, int64_t in) { y[out] += x[in] * share; });
  return y;
}

Doubles AvgPoolBackward(const Geometry2d& p, const Doubles& dy) {
  Doubles dx(p.batch * p.in_channels * p.in_height * p.in_width, 0.0);
  const double share = 1.0 / static_cast<double>(p.kernel_height * p.kernel_width);
  ForEachWindowElement(p, [&](int64_t out, int64_t in) { dx[in] += dy[out] * share; });
  return dx;
}

}  // namespace starling
