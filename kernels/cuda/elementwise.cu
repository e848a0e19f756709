// Each thread moves 16 bytes at a time: these kernels are limited by memory bandwidth, which hides
// the arithmetic.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/elementwise.h"

namespace starling::cuda {
namespace {

constexpr int kThreads = 256;

struct Relu {
  __device__ float operator()(float x) const { return x <= 0.0f ? 0.0f : x; }
};
struct ReluGradient {  // from the output
  __device__ float operator()(float y, float dy) const { return y > 0.0f ? dy : 0.0f; }
};

constexpr float kRootHalf = 0.70710678118654752f;
constexpr float kRootTwoOverPi = 0.79788456080286536f;
constexpr float kDensityAtZero = 0.39894228040143268f;  // 1 / sqrt(2 pi)
constexpr float kGeluCubic = 0.044715f;

struct Gelu {
  __device__ float operator()(float x) const { return 0.5f * x * (1.0f + erff(x * kRootHalf)); }
};
struct GeluGradient {
  __device__ float operator()(float x, float dy) const {
    const float phi = 0.5f * (1.0f + erff(x * kRootHalf));
    return dy * (phi + x * kDensityAtZero * expf(-0.5f * x * x));
  }
};
struct GeluTanh {
  __device__ float operator()(float x) const {
    return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * (x + kGeluCubic * x * x * x)));
  }
};
struct GeluTanhGradient {
  __device__ float operator()(float x, float dy) const {
    const float t = tanhf(kRootTwoOverPi * (x + kGeluCubic * x * x * x));
    const float inner = kRootTwoOverPi * (1.0f + 3.0f * kGeluCubic * x * x);
    return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner);
  }
};

struct Sigmoid {
  __device__ float operator()(float x) const { return 1.0f / (1.0f + expf(-x)); }
};
struct SigmoidGradient {
  __device__ float operator()(float y, float dy) const { return dy * y * (1.0f - y); }
};

struct Tanh {
  __device__ float operator()(float x) const { return tanhf(x); }
};
struct TanhGradient {
  __device__ float operator()(float y, float dy) const { return dy * (1.0f - y * y); }
};

struct Clip {
  float minimum, maximum;
  __device__ float operator()(float x) const {
    return x <= minimum ? minimum : x >= maximum ? maximum : x;
  }
};
struct ClipGradient {
  float minimum, maximum;
  __device__ float operator()(float x, float dy) const {
    return x > minimum && x < maximum ? dy : 0.0f;
  }
};

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Product {
  __device__ float operator()(float a, float b) const { return a * b; }
};
struct Scale {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

// Processes the first `packs` packs as a whole, the rest one by one.
template <typename T, typename F>
__global__ void UnaryKernel(const T* x, T* y, int64_t count, int64_t packs, F f) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < packs; i += stride) {
    const Pack<T> in = LoadPack<Pack<T>::kCount>(x + i * Pack<T>::kCount);
    Pack<T> out;
#pragma unroll
    for (int k = 0; k < Pack<T>::kCount; ++k) out.at[k] = FromFloat<T>(f(ToFloat(in.at[k])));
    StorePack(y + i * Pack<T>::kCount, out);
  }
  for (int64_t i = packs * Pack<T>::kCount + first; i < count; i += stride) {
    y[i] = FromFloat<T>(f(ToFloat(x[i])));
  }
}

template <typename T, typename F>
__global__ void BinaryKernel(const T* a, const T* b, T* y, int64_t count, int64_t packs, F f) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < packs; i += stride) {
    const Pack<T> left = LoadPack<Pack<T>::kCount>(a + i * Pack<T>::kCount);
    const Pack<T> right = LoadPack<Pack<T>::kCount>(b + i * Pack<T>::kCount);
    Pack<T> out;
#pragma unroll
    for (int k = 0; k < Pack<T>::kCount; ++k) {
      out.at[k] = FromFloat<T>(f(ToFloat(left.at[k]), ToFloat(right.at[k])));
    }
    StorePack(y + i * Pack<T>::kCount, out);
  }
  for (int64_t i = packs * Pack<T>::kCount + first; i < count; i += stride) {
    y[i] = FromFloat<T>(f(ToFloat(a[i]), ToFloat(b[i])));
  }
}

template <typename F>
cudaError_t Unary(Element element, F f, const void* x, void* y, int64_t count,
                  cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    const int64_t packs = Aligned16(x) && Aligned16(y) ? count / Pack<T>::kCount : 0;
    UnaryKernel<T><<<BlocksFor(packs > 0 ? packs : count, kThreads), kThreads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<T*>(y), count, packs, f);
    return cudaGetLastError();
  });
}

template <typename F>
cudaError_t Binary(Element element, F f, const void* a, const void* b, void* y, int64_t count,
                   cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = Aligned16(a) && Aligned16(b) && Aligned16(y);
    const int64_t packs = aligned ? count / Pack<T>::kCount : 0;
    BinaryKernel<T><<<BlocksFor(packs > 0 ? packs : count, kThreads), kThreads, 0, stream>>>(
        static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), count, packs, f);
    return cudaGetLastError();
  });
}

template <typename T>
__global__ void AddToChannelsKernel(T* y, const float* bias, int64_t count, int64_t channels,
                                    int64_t inner) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    y[i] = FromFloat<T>(ToFloat(y[i]) + bias[i / inner % channels]);
  }
}

__global__ void FillKernel(float value, const StepValues* values, float* y, int64_t count) {
  if (values != nullptr) value *= values->loss_scale;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    y[i] = value;
  }
}

__global__ void SetStepValuesKernel(StepValues values, StepValues* to) { *to = values; }

constexpr int kGroup = 8;  // elements per thread: two blocks of words, one byte of the mask

template <typename T>
__global__ void DropoutKernel(PhiloxKey key, const StepValues* values, uint32_t threshold,
                              float scale, const T* x, T* y, uint8_t* mask, int64_t count) {
  if (values != nullptr) {
    key.step = values->step;
    key.micro_batch = values->micro_batch;
  }
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t groups = (count + kGroup - 1) / kGroup;
  for (int64_t g = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; g < groups; g += stride) {
    uint32_t words[kGroup];
    PhiloxWords(key, static_cast<uint32_t>(2 * g), words);
    PhiloxWords(key, static_cast<uint32_t>(2 * g + 1), words + 4);
    uint32_t bits = 0;
#pragma unroll
    for (int k = 0; k < kGroup; ++k) bits |= (words[k] >= threshold ? 1u : 0u) << k;
    mask[g] = static_cast<uint8_t>(bits);
    for (int k = 0; k < kGroup && g * kGroup + k < count; ++k) {
      const int64_t i = g * kGroup + k;
      y[i] = FromFloat<T>((bits >> k & 1) != 0 ? ToFloat(x[i]) * scale : 0.0f);
    }
  }
}

template <typename T>
__global__ void DropoutGradientKernel(float scale, const uint8_t* mask, const T* dy, T* dx,
                                      int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    dx[i] = FromFloat<T>((mask[i / 8] >> (i % 8) & 1) != 0 ? ToFloat(dy[i]) * scale : 0.0f);
  }
}

}  // namespace

cudaError_t LaunchActivation(const ActivationOf& f, Element element, const void* x, void* y,
                             int64_t count, cudaStream_t stream) {
  switch (f.kind) {
    case Activation::kRelu: return Unary(element, Relu{}, x, y, count, stream);
    case Activation::kGelu: return Unary(element, Gelu{}, x, y, count, stream);
    case Activation::kGeluTanh: return Unary(element, GeluTanh{}, x, y, count, stream);
    case Activation::kSigmoid: return Unary(element, Sigmoid{}, x, y, count, stream);
    case Activation::kTanh: return Unary(element, Tanh{}, x, y, count, stream);
    case Activation::kClip: return Unary(element, Clip{f.minimum, f.maximum}, x, y, count, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchActivationGradient(const ActivationOf& f, Element element, const void* kept,
                                     const void* dy, void* dx, int64_t count, cudaStream_t stream) {
  switch (f.kind) {
    case Activation::kRelu: return Binary(element, ReluGradient{}, kept, dy, dx, count, stream);
    case Activation::kGelu: return Binary(element, GeluGradient{}, kept, dy, dx, count, stream);
    case Activation::kGeluTanh:
      return Binary(element, GeluTanhGradient{}, kept, dy, dx, count, stream);
    case Activation::kSigmoid:
      return Binary(element, SigmoidGradient{}, kept, dy, dx, count, stream);
    case Activation::kTanh: return Binary(element, TanhGradient{}, kept, dy, dx, count, stream);
    case Activation::kClip:
      return Binary(element, ClipGradient{f.minimum, f.maximum}, kept, dy, dx, count, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchAdd(Element element, const void* a, const void* b, void* sum, int64_t count,
                      cudaStream_t stream) {
  return Binary(element, Sum{}, a, b, sum, count, stream);
}

cudaError_t LaunchMultiply(Element element, const void* a, const void* b, void* product,
                           int64_t count, cudaStream_t stream) {
  return Binary(element, Product{}, a, b, product, count, stream);
}

cudaError_t LaunchAddToChannels(Element element, void* y, const float* bias, int64_t batch,
                                int64_t channels, int64_t points, bool channels_last,
                                cudaStream_t stream) {
  const int64_t count = batch * channels * points;
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    AddToChannelsKernel<T><<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
        static_cast<T*>(y), bias, count, channels, channels_last ? 1 : points);
    return cudaGetLastError();
  });
}

cudaError_t LaunchScale(Element element, float factor, const void* x, void* y, int64_t count,
                        cudaStream_t stream) {
  return Unary(element, Scale{factor}, x, y, count, stream);
}

cudaError_t LaunchFill(float value, const StepValues* values, float* y, int64_t count,
                       cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  FillKernel<<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(value, values, y, count);
  return cudaGetLastError();
}

cudaError_t LaunchSetStepValues(const StepValues& values, StepValues* to, cudaStream_t stream) {
  SetStepValuesKernel<<<1, 1, 0, stream>>>(values, to);
  return cudaGetLastError();
}

cudaError_t LaunchDropout(Element element, const PhiloxKey& key, const StepValues* values,
                          uint32_t threshold, float scale, const void* x, void* y, uint8_t* mask,
                          int64_t count, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    DropoutKernel<T><<<BlocksFor((count + kGroup - 1) / kGroup, kThreads), kThreads, 0, stream>>>(
        key, values, threshold, scale, static_cast<const T*>(x), static_cast<T*>(y), mask, count);
    return cudaGetLastError();
  });
}

cudaError_t LaunchDropoutGradient(Element element, float scale, const uint8_t* mask, const void* dy,
                                  void* dx, int64_t count, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    DropoutGradientKernel<T><<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
        scale, mask, static_cast<const T*>(dy), static_cast<T*>(dx), count);
    return cudaGetLastError();
  });
}

}  // namespace starling::cuda
