// Batch norm with sums in double, of sums of a few rows in float: a float sum of tens of thousands
// of values on one side of zero would be wrong by 1e-5, and gradients are small differences of such
// sums. The values are read once for the sums and once for the result.
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/planes.h"

namespace starling::cuda {
namespace {

// Sums x minus the channel's first element, which is near its mean: the squares lose no digits.
template <typename T, int kPack>
struct ShiftedPairs {
  const T* x;
  struct Factors {
    float shift[kPack];
  };
  __device__ Factors Of(int64_t column) const {
    Factors f;
    for (int k = 0; k < kPack; ++k) f.shift[k] = ToFloat(x[column + k]);
    return f;
  }
  __device__ void Add(const Factors& f, int64_t, int64_t i, float* first, float* second) const {
    const Pack<T, kPack> in = LoadPack<kPack>(x + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float d = ToFloat(in.at[k]) - f.shift[k];
      first[k] += d;
      second[k] += d * d;
    }
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

// The ReLU after batch norm, of which the gradients must know where it passed its input: all of it
// if there is none; else from its output or, which reads less, from the input of batch norm, by the
// same arithmetic as in Normalize.
enum class Mask { kNone, kOutput, kInput };

// What the gradients read of kPack elements.
template <typename T, int kPack, Mask kMask>
struct GradientInputs {
  Pack<T, kPack> x, y, dy;

  __device__ static GradientInputs At(const T* x, const T* y, const T* dy, int64_t i) {
    GradientInputs in;
    in.x = LoadPack<kPack>(x + i);
    in.dy = LoadPack<kPack>(dy + i);
    if constexpr (kMask == Mask::kOutput) in.y = LoadPack<kPack>(y + i);
    return in;
  }
};

// Per channel, for the mask.
template <int kPack, Mask kMask>
struct MaskFactors {
  float slope[kMask == Mask::kInput ? kPack : 1], offset[kMask == Mask::kInput ? kPack : 1];

  __device__ static MaskFactors Of(const ChannelFactors& factors, int64_t column) {
    MaskFactors f{};
    if constexpr (kMask == Mask::kInput) {
      for (int k = 0; k < kPack; ++k) {
        f.slope[k] = factors.scale[column + k] * factors.weight[column + k];
        f.offset[k] = factors.bias[column + k];
      }
    }
    return f;
  }
  // dy where the ReLU passed its input; `centred`: x minus the channel's mean.
  template <typename T>
  __device__ float Passed(const GradientInputs<T, kPack, kMask>& in, float centred, int k) const {
    const float dy = ToFloat(in.dy.at[k]);
    if constexpr (kMask == Mask::kOutput) return ToFloat(in.y.at[k]) > 0.0f ? dy : 0.0f;
    if constexpr (kMask == Mask::kInput) {
      return centred * slope[k] + offset[k] > 0.0f ? dy : 0.0f;
    }
    return dy;
  }
};

template <typename T, int kPack, Mask kMask>
struct GradientPairs {
  const T* x;
  const T* y;
  const T* dy;
  ChannelFactors factors;
  struct Factors {
    float mean[kPack], scale[kPack];
    MaskFactors<kPack, kMask> mask;
  };
  __device__ Factors Of(int64_t column) const {
    Factors f;
    for (int k = 0; k < kPack; ++k) {
      f.mean[k] = factors.mean[column + k];
      f.scale[k] = factors.scale[column + k];
    }
    f.mask = MaskFactors<kPack, kMask>::Of(factors, column);
    return f;
  }
  __device__ void Add(const Factors& f, int64_t, int64_t i, float* first, float* second) const {
    const auto in = GradientInputs<T, kPack, kMask>::At(x, y, dy, i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float centred = ToFloat(in.x.at[k]) - f.mean[k];
      const float g = f.mask.Passed(in, centred, k);
      first[k] += g;
      second[k] += g * centred * f.scale[k];
    }
  }
};

// Also weights the batch's statistics with its share of the step.
struct StoreSums {
  BatchNormSums to;
  ChannelFactors factors;
  __device__ void operator()(int64_t column, Two sum) const {
    to.dy[column] = static_cast<float>(sum.first);
    to.product[column] = static_cast<float>(sum.second);
    if (to.mean_share != nullptr) to.mean_share[column] = factors.mean[column] * to.share;
    if (to.variance_share != nullptr) to.variance_share[column] = to.variance[column] * to.share;
  }
};

__global__ void InverseRootKernel(const float* variance, float epsilon, int64_t channels,
                                  float* scale) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c < channels) scale[c] = 1.0f / sqrtf(variance[c] + epsilon);
}

template <typename T, int kPack>
struct Normalize {
  const T* x;
  const T* other;
  bool relu;
  ChannelFactors factors;
  T* y;
  struct Factors {
    float mean[kPack], slope[kPack], offset[kPack];
  };
  struct Inputs {
    Pack<T, kPack> x, other;
  };
  __device__ Factors Of(int64_t column) const {
    Factors f;
    for (int k = 0; k < kPack; ++k) {
      const int64_t c = column + k;
      f.mean[k] = factors.mean[c];
      f.slope[k] = factors.scale[c] * factors.weight[c];
      f.offset[k] = factors.bias[c];
    }
    return f;
  }
  __device__ Inputs Read(int64_t i) const {
    Inputs in;
    in.x = LoadPack<kPack>(x + i);
    if (other != nullptr) in.other = LoadPack<kPack>(other + i);
    return in;
  }
  __device__ void Write(const Factors& f, const Inputs& in, int64_t i) const {
    Pack<T, kPack> out;
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      float value = (ToFloat(in.x.at[k]) - f.mean[k]) * f.slope[k] + f.offset[k];
      if (other != nullptr) value += ToFloat(in.other.at[k]);
      out.at[k] = FromFloat<T>(relu && value <= 0.0f ? 0.0f : value);
    }
    StorePack(y + i, out);
  }
};

template <typename T, int kPack, Mask kMask>
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
  // dx = slope * dy - offset - (x - mean) * slant
  struct Factors {
    float mean[kPack], slope[kPack], offset[kPack], slant[kPack];
    MaskFactors<kPack, kMask> mask;
  };
  __device__ Factors Of(int64_t column) const {
    Factors f;
    for (int k = 0; k < kPack; ++k) {
      const int64_t c = column + k;
      const float scale = factors.scale[c], slope = scale * factors.weight[c];
      f.mean[k] = factors.mean[c];
      f.slope[k] = slope;
      f.offset[k] = slope * (dy_sums[c] / rows);
      f.slant[k] = slope * scale * (product_sums[c] / rows);
    }
    f.mask = MaskFactors<kPack, kMask>::Of(factors, column);
    return f;
  }
  // Reads dy before dx, which may alias it, is written.
  __device__ GradientInputs<T, kPack, kMask> Read(int64_t i) const {
    return GradientInputs<T, kPack, kMask>::At(x, y, dy, i);
  }
  __device__ void Write(const Factors& f, const GradientInputs<T, kPack, kMask>& in,
                        int64_t i) const {
    Pack<T, kPack> passed, out;
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float centred = ToFloat(in.x.at[k]) - f.mean[k];
      const float g = f.mask.Passed(in, centred, k);
      passed.at[k] = FromFloat<T>(g);
      out.at[k] = FromFloat<T>(f.slope[k] * g - f.offset[k] - centred * f.slant[k]);
    }
    if (dother != nullptr) StorePack(dother + i, passed);
    if (dx != nullptr) StorePack(dx + i, out);
  }
};

template <typename>
struct Summed {
  static constexpr int kCount = kSummedPack;
};

// Calls f<T, kPack, kMask>(), where kPack is Elements<T>::kCount or 1.
template <template <typename> typename Elements, typename F>
cudaError_t WithGradientTypes(const BatchNormOf& of, int64_t columns, const void* dx,
                              const void* dother, F f) {
  return WithType(of.element, [&](auto zero) {
    using T = decltype(zero);
    return WithPack<T, Elements<T>::kCount>(
        columns,
        [&]<int kPack>() {
          if (!of.relu) return f.template operator()<T, kPack, Mask::kNone>();
          if (of.y != nullptr) return f.template operator()<T, kPack, Mask::kOutput>();
          return f.template operator()<T, kPack, Mask::kInput>();
        },
        of.x, of.y, of.dy, dx, dother);
  });
}

}  // namespace

cudaError_t LaunchBatchStatistics(Element element, const void* x, const ColumnPlan& plan,
                                  float epsilon, const BatchStatistics& to, void* workspace,
                                  cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    const T* const values = static_cast<const T*>(x);
    return WithPack<T, kSummedPack>(
        plan.columns,
        [&]<int kPack>() {
          return SumColumns<kPack>(
              plan, ShiftedPairs<T, kPack>{values},
              StoreStatistics<T>{values, static_cast<double>(plan.rows), epsilon, to}, workspace,
              stream);
        },
        values);
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
    return WithPack<T>(
        plan.columns,
        [&]<int kPack>() {
          return MapColumns<kPack>(
              plan,
              Normalize<T, kPack>{static_cast<const T*>(x), static_cast<const T*>(other), relu,
                                  factors, static_cast<T*>(y)},
              stream);
        },
        x, other, y);
  });
}

cudaError_t LaunchBatchNormSums(const BatchNormOf& of, const ChannelFactors& factors,
                                const ColumnPlan& plan, const BatchNormSums& to, void* workspace,
                                cudaStream_t stream) {
  return WithGradientTypes<Summed>(
      of, plan.columns, nullptr, nullptr, [&]<typename T, int kPack, Mask kMask>() {
        return SumColumns<kPack>(
            plan,
            GradientPairs<T, kPack, kMask>{static_cast<const T*>(of.x), static_cast<const T*>(of.y),
                                           static_cast<const T*>(of.dy), factors},
            StoreSums{to, factors}, workspace, stream);
      });
}

cudaError_t LaunchBatchNormGradient(const BatchNormOf& of, const ChannelFactors& factors,
                                    const float* dy_sums, const float* product_sums,
                                    const ColumnPlan& plan, void* dx, void* dother,
                                    cudaStream_t stream) {
  return WithGradientTypes<Pack>(
      of, plan.columns, dx, dother, [&]<typename T, int kPack, Mask kMask>() {
        return MapColumns<kPack>(
            plan,
            Gradient<T, kPack, kMask>{static_cast<const T*>(of.x), static_cast<const T*>(of.y),
                                      static_cast<const T*>(of.dy), factors, dy_sums, product_sums,
                                      static_cast<float>(plan.rows), static_cast<T*>(dx),
                                      static_cast<T*>(dother)},
            stream);
      });
}

}  // namespace starling::cuda
