// One thread per output, or per element of the input's gradient; one block per element of the
// weight's gradient, which is summed over the batch. No atomic additions.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/direct.h"

namespace starling::cuda {
namespace {

constexpr int kThreads = 256;

__host__ __device__ int64_t CountOf(const DirectTensor& t) {
  return t.size[0] * t.size[1] * t.size[2] * t.size[3];
}

struct Place {
  int64_t a, b, c, d;
};

// The i-th, counted as [a, c, d, b]: neighbouring threads take neighbouring channels.
__device__ Place PlaceOf(const DirectTensor& t, int64_t i) {
  Place p;
  p.b = i % t.size[1];
  i /= t.size[1];
  p.d = i % t.size[3];
  i /= t.size[3];
  p.c = i % t.size[2];
  p.a = i / t.size[2];
  return p;
}

__device__ int64_t IndexOf(const DirectTensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
  return a * t.step[0] + b * t.step[1] + c * t.step[2] + d * t.step[3];
}
__device__ int64_t IndexOf(const DirectTensor& t, const Place& p) {
  return IndexOf(t, p.a, p.b, p.c, p.d);
}

__device__ int64_t GroupsOf(const DirectShape& s) { return s.x.size[1] / s.w.size[1]; }

// The input position of element k of output o's window, along one axis (0: height); may be outside.
__device__ int64_t InputAt(const DirectShape& s, int axis, int64_t o, int64_t k) {
  return o * s.stride[axis] - s.padding[axis] + k * s.dilation[axis];
}

// The output whose window has input i as its element k; -1: none.
__device__ int64_t OutputAt(const DirectShape& s, int axis, int64_t i, int64_t k) {
  const int64_t begin = i + s.padding[axis] - k * s.dilation[axis];
  if (begin < 0 || begin % s.stride[axis] != 0) return -1;
  const int64_t o = begin / s.stride[axis];
  return o < s.y.size[2 + axis] ? o : -1;
}

template <typename T>
__global__ void ForwardKernel(DirectShape s, const T* x, const T* w, T* y) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t channels = s.w.size[1], filters = s.y.size[1] / GroupsOf(s);
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < CountOf(s.y); i += stride) {
    const Place p = PlaceOf(s.y, i);
    const int64_t first = p.b / filters * channels;
    float sum = 0;
    for (int64_t ky = 0; ky < s.w.size[2]; ++ky) {
      const int64_t row = InputAt(s, 0, p.c, ky);
      if (row < 0 || row >= s.x.size[2]) continue;
      for (int64_t kx = 0; kx < s.w.size[3]; ++kx) {
        const int64_t column = InputAt(s, 1, p.d, kx);
        if (column < 0 || column >= s.x.size[3]) continue;
        for (int64_t c = 0; c < channels; ++c) {
          sum += ToFloat(x[IndexOf(s.x, p.a, first + c, row, column)]) *
                 ToFloat(w[IndexOf(s.w, p.b, c, ky, kx)]);
        }
      }
    }
    y[IndexOf(s.y, p)] = FromFloat<T>(sum);
  }
}

template <typename T>
__global__ void InputGradientKernel(DirectShape s, const T* w, const T* dy, T* dx) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t channels = s.w.size[1], filters = s.y.size[1] / GroupsOf(s);
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < CountOf(s.x); i += stride) {
    const Place p = PlaceOf(s.x, i);
    const int64_t first = p.b / channels * filters;
    float sum = 0;
    for (int64_t ky = 0; ky < s.w.size[2]; ++ky) {
      const int64_t row = OutputAt(s, 0, p.c, ky);
      if (row < 0) continue;
      for (int64_t kx = 0; kx < s.w.size[3]; ++kx) {
        const int64_t column = OutputAt(s, 1, p.d, kx);
        if (column < 0) continue;
        for (int64_t o = 0; o < filters; ++o) {
          sum += ToFloat(dy[IndexOf(s.y, p.a, first + o, row, column)]) *
                 ToFloat(w[IndexOf(s.w, first + o, p.b % channels, ky, kx)]);
        }
      }
    }
    dx[IndexOf(s.x, p)] = FromFloat<T>(sum);
  }
}

template <typename T>
__global__ void WeightGradientKernel(DirectShape s, const T* x, const T* dy, T* dw) {
  __shared__ double scratch[32];
  const int64_t channels = s.w.size[1], filters = s.y.size[1] / GroupsOf(s);
  const int64_t points = s.y.size[0] * s.y.size[2] * s.y.size[3];
  for (int64_t i = blockIdx.x; i < CountOf(s.w); i += gridDim.x) {
    const Place p = PlaceOf(s.w, i);
    const int64_t channel = p.a / filters * channels + p.b;
    double sum = 0;
    for (int64_t point = threadIdx.x; point < points; point += blockDim.x) {
      const int64_t ox = point % s.y.size[3];
      const int64_t oy = point / s.y.size[3] % s.y.size[2];
      const int64_t n = point / s.y.size[3] / s.y.size[2];
      const int64_t row = InputAt(s, 0, oy, p.c), column = InputAt(s, 1, ox, p.d);
      if (row < 0 || row >= s.x.size[2] || column < 0 || column >= s.x.size[3]) continue;
      sum += static_cast<double>(ToFloat(x[IndexOf(s.x, n, channel, row, column)])) *
             ToFloat(dy[IndexOf(s.y, n, p.a, oy, ox)]);
    }
    sum = BlockReduce(sum, 0.0, scratch, WarpSum<double>);
    if (threadIdx.x == 0) dw[IndexOf(s.w, p)] = FromFloat<T>(static_cast<float>(sum));
  }
}

}  // namespace

cudaError_t LaunchDirectForward(Element element, const DirectShape& shape, const void* x,
                                const void* w, void* y, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    ForwardKernel<T><<<BlocksFor(CountOf(shape.y), kThreads), kThreads, 0, stream>>>(
        shape, static_cast<const T*>(x), static_cast<const T*>(w), static_cast<T*>(y));
    return cudaGetLastError();
  });
}

cudaError_t LaunchDirectInputGradient(Element element, const DirectShape& shape, const void* w,
                                      const void* dy, void* dx, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    InputGradientKernel<T><<<BlocksFor(CountOf(shape.x), kThreads), kThreads, 0, stream>>>(
        shape, static_cast<const T*>(w), static_cast<const T*>(dy), static_cast<T*>(dx));
    return cudaGetLastError();
  });
}

cudaError_t LaunchDirectWeightGradient(Element element, const DirectShape& shape, const void* x,
                                       const void* dy, void* dw, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    WeightGradientKernel<T><<<BlocksFor(CountOf(shape.w), 1), kThreads, 0, stream>>>(
        shape, static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(dw));
    return cudaGetLastError();
  });
}

}  // namespace starling::cuda
