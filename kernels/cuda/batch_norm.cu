// Batch norm with sums in double: a float sum of tens of thousands of values on one side of zero
// would be wrong by 1e-5, and gradients are small differences of such sums. The values are read
// once for the sums and once for the result.
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/planes.h"

namespace starling::cuda {
namespace {

// Sums x minus the channel's first element, which is near its mean: the squares lose no digits.
template <typename T>
struct ShiftedPair {
  const T* x;
  int64_t columns;
  __device__ float2 operator()(int64_t row, int64_t column) const {
    const float d = ToFloat(x[row * columns + column]) - ToFloat(x[column]);
    return make_float2(d, d * d);
  }
};

template <typename T>
struct StoreStatistics {
  const T* x;
  double rows;
  float epsilon;
  BatchStatistics to;
  __device__ void operator()(int64_t column, Two sum) const {
    const double shift = sum.first / rows;
    const double variance = fmax(sum.second / rows - shift * shift, 0.0);
    to.mean[column] = static_cast<float>(ToFloat(x[column]) + shift);
    to.variance[column] = static_cast<float>(variance);
    to.scale[column] = static_cast<float>(1.0 / sqrt(variance + epsilon));
  }
};

// dy where the ReLU passed its input.
template <typename T>
__device__ float Passed(const T* y, const T* dy, int64_t i) {
  return y == nullptr || ToFloat(y[i]) > 0.0f ? ToFloat(dy[i]) : 0.0f;
}

template <typename T>
struct GradientPair {
  const T* x;
  const T* y;
  const T* dy;
  ChannelFactors factors;
  int64_t columns;
  __device__ float2 operator()(int64_t row, int64_t column) const {
    const int64_t i = row * columns + column;
    const float g = Passed(y, dy, i);
    return make_float2(g, g * (ToFloat(x[i]) - factors.mean[column]) * factors.scale[column]);
  }
};

struct StoreSums {
  float* first;
  float* second;
  __device__ void operator()(int64_t column, Two sum) const {
    first[column] = static_cast<float>(sum.first);
    second[column] = static_cast<float>(sum.second);
  }
};

__global__ void InverseRootKernel(const float* variance, float epsilon, int64_t channels,
                                  float* scale) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c < channels) scale[c] = 1.0f / sqrtf(variance[c] + epsilon);
}

// Each thread stays in its column and reads its factors once.
template <typename T, typename Map>
__global__ void MapColumnsKernel(ColumnPlan plan, Map map) {
  const int64_t column = int64_t{blockIdx.x} * kTileColumns + threadIdx.x;
  if (column >= plan.columns) return;
  const auto factors = map.Of(column);
  const int64_t first = int64_t{blockIdx.y} * kTileRows + threadIdx.y;
  const int64_t stride = int64_t{gridDim.y} * kTileRows;
  for (int64_t row = first; row < plan.rows; row += stride) {
    map.Apply(factors, row * plan.columns + column);
  }
}

template <typename T>
struct Normalize {
  const T* x;
  const T* other;
  bool relu;
  ChannelFactors factors;
  T* y;
  struct Factors {
    float mean, slope, offset;
  };
  __device__ Factors Of(int64_t c) const {
    return {factors.mean[c], factors.scale[c] * factors.weight[c], factors.bias[c]};
  }
  __device__ void Apply(const Factors& f, int64_t i) const {
    float value = (ToFloat(x[i]) - f.mean) * f.slope + f.offset;
    if (other != nullptr) value += ToFloat(other[i]);
    y[i] = FromFloat<T>(relu && value <= 0.0f ? 0.0f : value);
  }
};

template <typename T>
struct Gradient {
  const T* x;
  const T* y;
  const T* dy;
  ChannelFactors factors;
  const float* dy_sums;
  const float* product_sums;
  float rows;
  T* dx;
  T* dother;
  struct Factors {
    float mean, scale, slope, dy_mean, product_mean;
  };
  __device__ Factors Of(int64_t c) const {
    const float scale = factors.scale[c];
    return {factors.mean[c], scale, scale * factors.weight[c], dy_sums[c] / rows,
            product_sums[c] / rows};
  }
  // Reads dy before writing dx, which may alias it.
  __device__ void Apply(const Factors& f, int64_t i) const {
    const float g = Passed(y, dy, i);
    if (dother != nullptr) dother[i] = FromFloat<T>(g);
    if (dx == nullptr) return;
    const float normal = (ToFloat(x[i]) - f.mean) * f.scale;
    dx[i] = FromFloat<T>(f.slope * (g - f.dy_mean - normal * f.product_mean));
  }
};

template <typename T, typename Map>
cudaError_t MapColumns(const ColumnPlan& plan, const Map& map, cudaStream_t stream) {
  constexpr int64_t kBlocksWanted = 132 * 16;
  const int64_t most = (plan.rows + kTileRows - 1) / kTileRows;
  const int64_t wanted = std::max<int64_t>(kBlocksWanted / plan.tiles(), 1);
  const dim3 grid(static_cast<unsigned>(plan.tiles()),
                  static_cast<unsigned>(std::min(most, wanted)));
  MapColumnsKernel<T><<<grid, dim3(kTileColumns, kTileRows), 0, stream>>>(plan, map);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchBatchStatistics(Element element, const void* x, const ColumnPlan& plan,
                                  float epsilon, const BatchStatistics& to, void* workspace,
                                  cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    const T* const values = static_cast<const T*>(x);
    return SumColumns(plan, ShiftedPair<T>{values, plan.columns},
                      StoreStatistics<T>{values, static_cast<double>(plan.rows), epsilon, to},
                      workspace, stream);
  });
}

cudaError_t LaunchInverseRoot(const float* variance, float epsilon, int64_t channels, float* scale,
                              cudaStream_t stream) {
  constexpr int kThreads = 128;
  const auto blocks = static_cast<unsigned>((channels + kThreads - 1) / kThreads);
  InverseRootKernel<<<blocks, kThreads, 0, stream>>>(variance, epsilon, channels, scale);
  return cudaGetLastError();
}

cudaError_t LaunchNormalize(Element element, const void* x, const void* other, bool relu,
                            const ChannelFactors& factors, const ColumnPlan& plan, void* y,
                            cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    return MapColumns<T>(plan,
                         Normalize<T>{static_cast<const T*>(x), static_cast<const T*>(other), relu,
                                      factors, static_cast<T*>(y)},
                         stream);
  });
}

cudaError_t LaunchBatchNormSums(Element element, const void* x, const void* y, const void* dy,
                                const ChannelFactors& factors, const ColumnPlan& plan,
                                float* dy_sums, float* product_sums, void* workspace,
                                cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    return SumColumns(plan,
                      GradientPair<T>{static_cast<const T*>(x), static_cast<const T*>(y),
                                      static_cast<const T*>(dy), factors, plan.columns},
                      StoreSums{dy_sums, product_sums}, workspace, stream);
  });
}

cudaError_t LaunchBatchNormGradient(Element element, const void* x, const void* y, const void* dy,
                                    const ChannelFactors& factors, const float* dy_sums,
                                    const float* product_sums, const ColumnPlan& plan, void* dx,
                                    void* dother, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    return MapColumns<T>(
        plan,
        Gradient<T>{static_cast<const T*>(x), static_cast<const T*>(y), static_cast<const T*>(dy),
                    factors, dy_sums, product_sums, static_cast<float>(plan.rows),
                    static_cast<T*>(dx), static_cast<T*>(dother)},
        stream);
  });
}

}  // namespace starling::cuda
