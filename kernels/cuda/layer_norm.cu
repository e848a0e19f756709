// Layer norm: a warp per row. The second and third pass over a row hit the cache.
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/rows.h"

namespace starling::cuda {
namespace {

constexpr int kWarps = 8;  // rows per block

unsigned RowBlocks(int64_t rows) { return BlocksFor(rows, kWarps); }

template <typename T>
__global__ void LayerNormKernel(const T* x, const float* weight, const float* bias, float epsilon,
                                int64_t rows, int64_t columns, T* y, float* mean, float* scale) {
  const int lane = threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.y; row < rows; row += stride) {
    const T* const from = x + row * columns;
    float sum = 0;
    for (int64_t i = lane; i < columns; i += 32) sum += ToFloat(from[i]);
    const float m = WarpSum(sum) / static_cast<float>(columns);
    float squares = 0;
    for (int64_t i = lane; i < columns; i += 32) {
      const float d = ToFloat(from[i]) - m;
      squares += d * d;
    }
    const float s = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(columns) + epsilon);
    T* const to = y + row * columns;
    for (int64_t i = lane; i < columns; i += 32) {
      to[i] = FromFloat<T>((ToFloat(from[i]) - m) * s * weight[i] + bias[i]);
    }
    if (lane == 0 && mean != nullptr) {
      mean[row] = m;
      scale[row] = s;
    }
  }
}

template <typename T>
__global__ void LayerNormGradientKernel(const T* x, const float* weight, const float* mean,
                                        const float* scale, const T* dy, int64_t rows,
                                        int64_t columns, T* dx) {
  const int lane = threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.y; row < rows; row += stride) {
    const int64_t begin = row * columns;
    const float m = mean[row], s = scale[row];
    float plain = 0, product = 0;
    for (int64_t i = lane; i < columns; i += 32) {
      const float g = ToFloat(dy[begin + i]) * weight[i];
      plain += g;
      product += g * (ToFloat(x[begin + i]) - m) * s;
    }
    plain = WarpSum(plain) / static_cast<float>(columns);
    product = WarpSum(product) / static_cast<float>(columns);
    for (int64_t i = lane; i < columns; i += 32) {
      const float g = ToFloat(dy[begin + i]) * weight[i];
      const float normal = (ToFloat(x[begin + i]) - m) * s;
      dx[begin + i] = FromFloat<T>(s * (g - plain - normal * product));
    }
  }
}

template <typename T>
struct LayerNormPair {
  const T* x;
  const T* dy;
  const float* mean;
  const float* scale;
  int64_t columns;
  __device__ float2 operator()(int64_t row, int64_t column) const {
    const int64_t i = row * columns + column;
    const float g = ToFloat(dy[i]);
    return make_float2(g, g * (ToFloat(x[i]) - mean[row]) * scale[row]);
  }
};

struct StoreBoth {
  float* first;  // either may be null
  float* second;
  __device__ void operator()(int64_t column, Two sum) const {
    if (first != nullptr) first[column] = static_cast<float>(sum.first);
    if (second != nullptr) second[column] = static_cast<float>(sum.second);
  }
};

template <typename T>
struct ElementPair {
  const T* x;
  int64_t columns;
  __device__ float2 operator()(int64_t row, int64_t column) const {
    return make_float2(ToFloat(x[row * columns + column]), 0.0f);
  }
};

}  // namespace

cudaError_t LaunchLayerNorm(Element element, const void* x, const float* weight, const float* bias,
                            float epsilon, int64_t rows, int64_t columns, void* y, float* mean,
                            float* scale, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    LayerNormKernel<T><<<RowBlocks(rows), dim3(32, kWarps), 0, stream>>>(
        static_cast<const T*>(x), weight, bias, epsilon, rows, columns, static_cast<T*>(y), mean,
        scale);
    return cudaGetLastError();
  });
}

cudaError_t LaunchLayerNormGradient(Element element, const void* x, const float* weight,
                                    const float* mean, const float* scale, const void* dy,
                                    int64_t rows, int64_t columns, void* dx, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    LayerNormGradientKernel<T><<<RowBlocks(rows), dim3(32, kWarps), 0, stream>>>(
        static_cast<const T*>(x), weight, mean, scale, static_cast<const T*>(dy), rows, columns,
        static_cast<T*>(dx));
    return cudaGetLastError();
  });
}

cudaError_t LaunchLayerNormParameterGradients(Element element, const void* x, const float* mean,
                                              const float* scale, const void* dy,
                                              const ColumnPlan& plan, float* dweight, float* dbias,
                                              void* workspace, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    const LayerNormPair<T> pair = {static_cast<const T*>(x), static_cast<const T*>(dy), mean, scale,
                                   plan.columns};
    return SumColumns(plan, pair, StoreBoth{dbias, dweight}, workspace, stream);
  });
}

cudaError_t LaunchColumnSums(Element element, const void* x, const ColumnPlan& plan, float* sums,
                             void* workspace, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    const ElementPair<T> pair = {static_cast<const T*>(x), plan.columns};
    return SumColumns(plan, pair, StoreBoth{sums, nullptr}, workspace, stream);
  });
}

}  // namespace starling::cuda
