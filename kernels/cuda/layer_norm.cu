// Layer norm: a warp per row. The second and third pass over a row hit the cache.
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/rows.h"

namespace starling::cuda {
namespace {

constexpr int kWarps = 8;  // rows per block
// Elements of a lane at a time. With more, the lanes' floats of weight and bias would be far apart.
constexpr int kRowPack = 2;

unsigned RowBlocks(int64_t rows) { return BlocksFor(rows, kWarps); }

// Calls visit(column, pack...) for the lane's packs of rows that start at the given places.
template <int kPack, typename Visit, typename... T>
__device__ void ForEachPackOf(int64_t columns, Visit visit, const T*... rows) {
  for (int64_t i = int64_t{threadIdx.x} * kPack; i < columns; i += 32 * kPack) {
    visit(i, LoadPack<kPack>(rows + i)...);
  }
}

template <typename T, int kPack>
__global__ void LayerNormKernel(const T* x, const float* weight, const float* bias, float epsilon,
                                int64_t rows, int64_t columns, T* y, float* mean, float* scale) {
  using Values = Pack<T, kPack>;
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.y; row < rows; row += stride) {
    const T* const from = x + row * columns;
    float sum = 0;
    ForEachPackOf<kPack>(
        columns,
        [&](int64_t, const Values& in) {
#pragma unroll
          for (int k = 0; k < kPack; ++k) sum += ToFloat(in.at[k]);
        },
        from);
    const float m = WarpSum(sum) / static_cast<float>(columns);
    float squares = 0;
    ForEachPackOf<kPack>(
        columns,
        [&](int64_t, const Values& in) {
#pragma unroll
          for (int k = 0; k < kPack; ++k) {
            const float d = ToFloat(in.at[k]) - m;
            squares += d * d;
          }
        },
        from);
    const float s = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(columns) + epsilon);
    T* const to = y + row * columns;
    ForEachPackOf<kPack>(
        columns,
        [&](int64_t i, const Values& in) {
          Values out;
#pragma unroll
          for (int k = 0; k < kPack; ++k) {
            out.at[k] = FromFloat<T>((ToFloat(in.at[k]) - m) * s * weight[i + k] + bias[i + k]);
          }
          StorePack(to + i, out);
        },
        from);
    if (threadIdx.x == 0 && mean != nullptr) {
      mean[row] = m;
      scale[row] = s;
    }
  }
}

template <typename T, int kPack>
__global__ void LayerNormGradientKernel(const T* x, const float* weight, const float* mean,
                                        const float* scale, const T* dy, int64_t rows,
                                        int64_t columns, T* dx) {
  using Values = Pack<T, kPack>;
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.y; row < rows; row += stride) {
    const int64_t begin = row * columns;
    const float m = mean[row], s = scale[row];
    float plain = 0, product = 0;
    ForEachPackOf<kPack>(
        columns,
        [&](int64_t i, const Values& in, const Values& gradient) {
#pragma unroll
          for (int k = 0; k < kPack; ++k) {
            const float g = ToFloat(gradient.at[k]) * weight[i + k];
            plain += g;
            product += g * (ToFloat(in.at[k]) - m) * s;
          }
        },
        x + begin, dy + begin);
    plain = WarpSum(plain) / static_cast<float>(columns);
    product = WarpSum(product) / static_cast<float>(columns);
    ForEachPackOf<kPack>(
        columns,
        [&](int64_t i, const Values& in, const Values& gradient) {
          Values out;
#pragma unroll
          for (int k = 0; k < kPack; ++k) {
            const float g = ToFloat(gradient.at[k]) * weight[i + k];
            const float normal = (ToFloat(in.at[k]) - m) * s;
            out.at[k] = FromFloat<T>(s * (g - plain - normal * product));
          }
          StorePack(dx + begin + i, out);
        },
        x + begin, dy + begin);
  }
}

template <typename T, int kPack>
struct LayerNormPairs {
  const T* x;
  const T* dy;
  const float* mean;
  const float* scale;
  struct Factors {};
  __device__ Factors Of(int64_t) const { return {}; }
  __device__ void Add(const Factors&, int64_t row, int64_t i, float* first, float* second) const {
    const float m = mean[row], s = scale[row];
    const Pack<T, kPack> values = LoadPack<kPack>(x + i), gradients = LoadPack<kPack>(dy + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float g = ToFloat(gradients.at[k]);
      first[k] += g;
      second[k] += g * (ToFloat(values.at[k]) - m) * s;
    }
  }
};

struct StoreBoth {
  int64_t kept;  // columns
  float* first;  // either may be null
  float* second;
  __device__ void operator()(int64_t column, Two sum) const {
    if (column >= kept) return;
    if (first != nullptr) first[column] = static_cast<float>(sum.first);
    if (second != nullptr) second[column] = static_cast<float>(sum.second);
  }
};

template <typename T, int kPack>
struct ElementPairs {
  const T* x;
  struct Factors {};
  __device__ Factors Of(int64_t) const { return {}; }
  __device__ void Add(const Factors&, int64_t, int64_t i, float* first, float*) const {
    const Pack<T, kPack> in = LoadPack<kPack>(x + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) first[k] += ToFloat(in.at[k]);
  }
};

}  // namespace

cudaError_t LaunchLayerNorm(Element element, const void* x, const float* weight, const float* bias,
                            float epsilon, int64_t rows, int64_t columns, void* y, float* mean,
                            float* scale, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    return WithPack<T, kRowPack>(
        columns,
        [&]<int kPack>() {
          LayerNormKernel<T, kPack><<<RowBlocks(rows), dim3(32, kWarps), 0, stream>>>(
              static_cast<const T*>(x), weight, bias, epsilon, rows, columns, static_cast<T*>(y),
              mean, scale);
          return cudaGetLastError();
        },
        x, y);
  });
}

cudaError_t LaunchLayerNormGradient(Element element, const void* x, const float* weight,
                                    const float* mean, const float* scale, const void* dy,
                                    int64_t rows, int64_t columns, void* dx, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    return WithPack<T, kRowPack>(
        columns,
        [&]<int kPack>() {
          LayerNormGradientKernel<T, kPack><<<RowBlocks(rows), dim3(32, kWarps), 0, stream>>>(
              static_cast<const T*>(x), weight, mean, scale, static_cast<const T*>(dy), rows,
              columns, static_cast<T*>(dx));
          return cudaGetLastError();
        },
        x, dy, dx);
  });
}

cudaError_t LaunchLayerNormParameterGradients(Element element, const void* x, const float* mean,
                                              const float* scale, const void* dy,
                                              const ColumnPlan& plan, float* dweight, float* dbias,
                                              void* workspace, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    return WithPack<T, kSummedPack>(
        plan.columns,
        [&]<int kPack>() {
          const LayerNormPairs<T, kPack> pairs = {static_cast<const T*>(x),
                                                  static_cast<const T*>(dy), mean, scale};
          return SumColumns<kPack>(plan, pairs, StoreBoth{plan.columns, dbias, dweight}, workspace,
                                   stream);
        },
        x, dy);
  });
}

cudaError_t LaunchColumnSums(Element element, const void* x, const ColumnPlan& plan, int64_t kept,
                             float* sums, void* workspace, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    return WithPack<T, kSummedPack>(
        plan.columns,
        [&]<int kPack>() {
          const ElementPairs<T, kPack> pairs = {static_cast<const T*>(x)};
          return SumColumns<kPack>(plan, pairs, StoreBoth{kept, sums, nullptr}, workspace, stream);
        },
        x);
  });
}

}  // namespace starling::cuda
