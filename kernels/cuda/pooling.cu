// Pooling with channels last: neighbouring threads take neighbouring channels. Each input element
// gathers its gradient from the windows that contain it, so there are no atomic additions.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/planes.h"

namespace starling::cuda {
namespace {

constexpr int kThreads = 256;
// Of a block that averages planes.
constexpr int kTileColumns = 32, kTileRows = 8;

struct Place {
  int64_t n, y, x, c;
};

__device__ Place PlaceOf(int64_t i, int64_t height, int64_t width, int64_t channels) {
  Place p;
  p.c = i % channels;
  i /= channels;
  p.x = i % width;
  i /= width;
  p.y = i % height;
  p.n = i / height;
  return p;
}

__device__ int64_t InputIndex(const PoolShape& s, const Place& p) {
  return ((p.n * s.in_height + p.y) * s.in_width + p.x) * s.channels + p.c;
}

__device__ int64_t OutputIndex(const PoolShape& s, const Place& p) {
  return ((p.n * s.out_height + p.y) * s.out_width + p.x) * s.channels + p.c;
}

// Calls visit(input position, offset in the window) for the window of output `o`, without padding.
template <typename Visit>
__device__ void ForEachInWindow(const PoolShape& s, const Place& o, Visit visit) {
  for (int64_t ky = 0; ky < s.kernel_height; ++ky) {
    const int64_t y = o.y * s.stride_height - s.padding_height + ky;
    if (y < 0 || y >= s.in_height) continue;
    for (int64_t kx = 0; kx < s.kernel_width; ++kx) {
      const int64_t x = o.x * s.stride_width - s.padding_width + kx;
      if (x < 0 || x >= s.in_width) continue;
      visit(Place{o.n, y, x, o.c}, ky * s.kernel_width + kx);
    }
  }
}

// Calls visit(output position, offset in its window) for the windows that contain input `i`, in
// order.
template <typename Visit>
__device__ void ForEachWindowOf(const PoolShape& s, const Place& i, Visit visit) {
  const int64_t y = i.y + s.padding_height, x = i.x + s.padding_width;
  const int64_t oy_first = y < s.kernel_height ? 0 : (y - s.kernel_height) / s.stride_height + 1;
  const int64_t ox_first = x < s.kernel_width ? 0 : (x - s.kernel_width) / s.stride_width + 1;
  for (int64_t oy = oy_first; oy < s.out_height && oy * s.stride_height <= y; ++oy) {
    for (int64_t ox = ox_first; ox < s.out_width && ox * s.stride_width <= x; ++ox) {
      visit(Place{i.n, oy, ox, i.c},
            (y - oy * s.stride_height) * s.kernel_width + x - ox * s.stride_width);
    }
  }
}

// Of kPack neighbouring channels, of which `place` has the first.
template <typename T, int kPack>
__global__ void MaxPoolKernel(PoolShape s, int64_t packs, const T* x, T* y, uint16_t* at) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += stride) {
    Pack<T, kPack> best;
    Pack<uint16_t, kPack> best_at;
    bool any = false;
    Place place = PlaceOf(i, s.out_height, s.out_width, s.channels / kPack);
    place.c *= kPack;
    ForEachInWindow(s, place, [&](const Place& in, int64_t offset) {
      const Pack<T, kPack> values = LoadPack<kPack>(x + InputIndex(s, in));
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        if (any && !(ToFloat(values.at[k]) > ToFloat(best.at[k]))) continue;
        best.at[k] = values.at[k];
        best_at.at[k] = static_cast<uint16_t>(offset);
      }
      any = true;
    });
    StorePack(y + i * kPack, best);
    if (at != nullptr) StorePack(at + i * kPack, best_at);
  }
}

template <typename T, int kPack>
__global__ void MaxPoolGradientKernel(PoolShape s, int64_t packs, const uint16_t* at, const T* dy,
                                      T* dx) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += stride) {
    float sum[kPack] = {};
    Place place = PlaceOf(i, s.in_height, s.in_width, s.channels / kPack);
    place.c *= kPack;
    ForEachWindowOf(s, place, [&](const Place& out, int64_t offset) {
      const int64_t o = OutputIndex(s, out);
      const Pack<uint16_t, kPack> greatest = LoadPack<kPack>(at + o);
      const Pack<T, kPack> gradient = LoadPack<kPack>(dy + o);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        if (greatest.at[k] == offset) sum[k] += ToFloat(gradient.at[k]);
      }
    });
    Pack<T, kPack> result;
#pragma unroll
    for (int k = 0; k < kPack; ++k) result.at[k] = FromFloat<T>(sum[k]);
    StorePack(dx + i * kPack, result);
  }
}

template <typename T>
__global__ void AveragePoolKernel(PoolShape s, int64_t count, float share, const T* x, T* y) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    float sum = 0;
    const Place place = PlaceOf(i, s.out_height, s.out_width, s.channels);
    ForEachInWindow(s, place,
                    [&](const Place& in, int64_t) { sum += ToFloat(x[InputIndex(s, in)]); });
    y[i] = FromFloat<T>(sum * share);
  }
}

template <typename T>
__global__ void AveragePoolGradientKernel(PoolShape s, int64_t count, float share, const T* dy,
                                          T* dx) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    float sum = 0;
    const Place place = PlaceOf(i, s.in_height, s.in_width, s.channels);
    ForEachWindowOf(s, place,
                    [&](const Place& out, int64_t) { sum += ToFloat(dy[OutputIndex(s, out)]); });
    dx[i] = FromFloat<T>(sum * share);
  }
}

// A block handles 32 channels of one sample with 8 threads each. Samples are along the grid's x,
// the only axis that may exceed 65,535.
template <typename T>
__global__ void GlobalAverageKernel(const T* x, int64_t points, int64_t channels, T* y) {
  __shared__ float sums[kTileRows][kTileColumns];
  const int64_t c = int64_t{blockIdx.y} * kTileColumns + threadIdx.x;
  const T* const from = x + int64_t{blockIdx.x} * points * channels;
  float sum = 0;
  if (c < channels) {
    for (int64_t p = threadIdx.y; p < points; p += kTileRows) {
      sum += ToFloat(from[p * channels + c]);
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= channels) return;
  for (int i = 1; i < kTileRows; ++i) sum += sums[i][threadIdx.x];
  y[blockIdx.x * channels + c] = FromFloat<T>(sum / static_cast<float>(points));
}

template <typename T>
__global__ void GlobalAverageGradientKernel(const T* dy, int64_t count, int64_t points,
                                            int64_t channels, T* dx) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const int64_t n = i / (points * channels), c = i % channels;
    dx[i] = FromFloat<T>(ToFloat(dy[n * channels + c]) / static_cast<float>(points));
  }
}

int64_t InputCount(const PoolShape& s) { return s.batch * s.in_height * s.in_width * s.channels; }
int64_t OutputCount(const PoolShape& s) {
  return s.batch * s.out_height * s.out_width * s.channels;
}
float ShareOf(const PoolShape& s) {
  return 1.0f / static_cast<float>(s.kernel_height * s.kernel_width);
}

}  // namespace

cudaError_t LaunchMaxPool(Element element, const PoolShape& shape, const void* x, void* y,
                          uint16_t* at, cudaStream_t stream) {
  if (shape.kernel_height * shape.kernel_width > 65536) return cudaErrorInvalidValue;
  const int64_t count = OutputCount(shape);
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    return WithPack<T>(
        shape.channels,
        [&]<int kPack>() {
          const int64_t packs = count / kPack;
          MaxPoolKernel<T, kPack><<<BlocksFor(packs, kThreads), kThreads, 0, stream>>>(
              shape, packs, static_cast<const T*>(x), static_cast<T*>(y), at);
          return cudaGetLastError();
        },
        x, y, at);
  });
}

cudaError_t LaunchMaxPoolGradient(Element element, const PoolShape& shape, const uint16_t* at,
                                  const void* dy, void* dx, cudaStream_t stream) {
  const int64_t count = InputCount(shape);
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    return WithPack<T>(
        shape.channels,
        [&]<int kPack>() {
          const int64_t packs = count / kPack;
          MaxPoolGradientKernel<T, kPack><<<BlocksFor(packs, kThreads), kThreads, 0, stream>>>(
              shape, packs, at, static_cast<const T*>(dy), static_cast<T*>(dx));
          return cudaGetLastError();
        },
        at, dy, dx);
  });
}

cudaError_t LaunchAveragePool(Element element, const PoolShape& shape, const void* x, void* y,
                              cudaStream_t stream) {
  const int64_t count = OutputCount(shape);
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    AveragePoolKernel<T><<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
        shape, count, ShareOf(shape), static_cast<const T*>(x), static_cast<T*>(y));
    return cudaGetLastError();
  });
}

cudaError_t LaunchAveragePoolGradient(Element element, const PoolShape& shape, const void* dy,
                                      void* dx, cudaStream_t stream) {
  const int64_t count = InputCount(shape);
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    AveragePoolGradientKernel<T><<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
        shape, count, ShareOf(shape), static_cast<const T*>(dy), static_cast<T*>(dx));
    return cudaGetLastError();
  });
}

cudaError_t LaunchGlobalAverage(Element element, const void* x, int64_t batch, int64_t points,
                                int64_t channels, void* y, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(batch),
                  static_cast<unsigned>((channels + kTileColumns - 1) / kTileColumns));
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    GlobalAverageKernel<T><<<grid, dim3(kTileColumns, kTileRows), 0, stream>>>(
        static_cast<const T*>(x), points, channels, static_cast<T*>(y));
    return cudaGetLastError();
  });
}

cudaError_t LaunchGlobalAverageGradient(Element element, const void* dy, int64_t batch,
                                        int64_t points, int64_t channels, void* dx,
                                        cudaStream_t stream) {
  const int64_t count = batch * points * channels;
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    GlobalAverageGradientKernel<T><<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
        static_cast<const T*>(dy), count, points, channels, static_cast<T*>(dx));
    return cudaGetLastError();
  });
}

}  // namespace starling::cuda
