// Softmax and losses: a block per row, of a single warp if rows are short.
#include <cmath>

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/rows.h"

namespace starling::cuda {
namespace {

constexpr float kInfinity = INFINITY;
constexpr float kNan = NAN;

int RowThreads(int64_t columns) { return columns <= 256 ? 32 : 256; }

unsigned RowBlocks(int64_t rows) { return BlocksFor(rows, 1); }

struct SumAll {
  template <typename T>
  __device__ T operator()(T value) const {
    return WarpSum(value);
  }
};
struct MaxAll {
  __device__ float operator()(float value) const { return WarpMax(value); }
};

__device__ bool InRange(int32_t label, int64_t columns) { return label >= 0 && label < columns; }

// Calls visit(first column, kPack values as floats) for this thread's packs of a row, which starts
// aligned to them. Values of padding are `padding`.
template <int kPack, typename T, typename Visit>
__device__ void ForEachPack(const T* row, int columns, int first, int threads, float padding,
                            Visit visit) {
  for (int i = first * kPack; i < columns; i += threads * kPack) {
    const Pack<T, kPack> in = LoadPack<kPack>(row + i);
    float values[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k) values[k] = ToFloat(in.at[k]);
    if (i + kPack > columns) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) values[k] = i + k < columns ? values[k] : padding;
    }
    visit(i, values);
  }
}

// Reads each logit once: a thread scales its sum down whenever it finds a greater logit.
template <typename T, int kPack>
__global__ void CrossEntropyKernel(const T* logits, const int32_t* labels, int64_t rows,
                                   int64_t columns, int64_t row_stride, float* losses,
                                   float* log_sums) {
  __shared__ float scratch[32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = logits + row * row_stride;
    float own_top = -kInfinity, sum = 0;
    ForEachPack<kPack>(x, static_cast<int>(columns), threadIdx.x, blockDim.x, -kInfinity,
                       [&](int, const float* values) {
                         float top = values[0];
#pragma unroll
                         for (int k = 1; k < kPack; ++k) top = fmaxf(top, values[k]);
                         if (top > own_top) {
                           sum *= expf(own_top - top);
                           own_top = top;
                         }
                         // Without a finite logit yet there is nothing to subtract: exp(-inf) is 0.
                         const float base = own_top > -kInfinity ? own_top : 0.0f;
#pragma unroll
                         for (int k = 0; k < kPack; ++k) sum += expf(values[k] - base);
                       });
    const float top = BlockReduce(own_top, -kInfinity, scratch, MaxAll{});
    if (own_top > -kInfinity) sum *= expf(own_top - top);
    sum = BlockReduce(sum, 0.0f, scratch, SumAll{});
    if (threadIdx.x != 0) continue;
    const float log_sum = top + logf(sum);
    const int32_t label = labels[row];
    losses[row] = InRange(label, columns) ? log_sum - ToFloat(x[label]) : kNan;
    if (log_sums != nullptr) log_sums[row] = log_sum;
  }
}

// Padding becomes zero.
template <typename T, int kPack>
__global__ void CrossEntropyGradientKernel(const T* logits, const int32_t* labels,
                                           const float* log_sums, float scale,
                                           const StepValues* values, int64_t rows, int64_t columns,
                                           int64_t row_stride, T* gradient) {
  if (values != nullptr) scale *= values->loss_scale;
  const int width = static_cast<int>(columns), end = static_cast<int>(row_stride);
  const int step = static_cast<int>(blockDim.x) * kPack;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int32_t label = labels[row];
    const float factor = InRange(label, columns) ? scale : kNan;
    const float log_sum = log_sums[row];
    for (int i = static_cast<int>(threadIdx.x) * kPack; i < end; i += step) {
      const Pack<T, kPack> in = LoadPack<kPack>(logits + row * row_stride + i);
      Pack<T, kPack> out;
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float p = expf(ToFloat(in.at[k]) - log_sum);
        const float d = (p - (i + k == label ? 1.0f : 0.0f)) * factor;
        out.at[k] = FromFloat<T>(i + k < width ? d : 0.0f);
      }
      StorePack(gradient + row * row_stride + i, out);
    }
  }
}

// Of two columns, the one with the greater logit; of equals, the first.
struct Candidate {
  float logit;
  int column;
};

__device__ Candidate Better(const Candidate& a, const Candidate& b) {
  const bool second = b.logit > a.logit || (b.logit == a.logit && b.column < a.column);
  return second ? b : a;
}

// A warp per row. Integer sums are the same in any order.
template <typename T, int kPack>
__global__ void CountGreatestKernel(const T* logits, const int32_t* labels, int64_t rows,
                                    int64_t columns, int64_t row_stride, int64_t period,
                                    uint32_t* correct) {
  const int64_t stride = int64_t{gridDim.x} * (blockDim.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; row < rows;
       row += stride) {
    const int none = static_cast<int>(columns);
    Candidate best = {-kInfinity, none};
    ForEachPack<kPack>(logits + row * row_stride, static_cast<int>(columns), lane, 32, -kInfinity,
                       [&](int column, const float* values) {
#pragma unroll
                         for (int k = 0; k < kPack; ++k) {
                           // Later columns come later: the first of equals stays.
                           if (values[k] > best.logit || best.column == none)
                             best = {values[k], column + k};
                         }
                       });
    for (int offset = 16; offset > 0; offset /= 2) {
      best = Better(best, {__shfl_xor_sync(~0u, best.logit, offset),
                           __shfl_xor_sync(~0u, best.column, offset)});
    }
    if (lane == 0 && best.column == labels[row]) atomicAdd(correct + row / period, 1u);
  }
}

__global__ void CountSignsKernel(const float* logits, const float* labels, int64_t count,
                                 int64_t period, uint32_t* correct) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    if ((logits[i] > 0) == (labels[i] > 0.5f)) atomicAdd(correct + i / period, 1u);
  }
}

struct Itself {
  __device__ float operator()(float x, float) const { return x; }
};
struct SquaredError {
  __device__ float operator()(float x, float label) const { return (x - label) * (x - label); }
};
struct SquaredErrorGradient {
  __device__ float operator()(float x, float label) const { return 2.0f * (x - label); }
};
struct BinaryCrossEntropy {
  __device__ float operator()(float x, float label) const {
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))) - x * label;
  }
};
struct BinaryCrossEntropyGradient {
  __device__ float operator()(float x, float label) const {
    return 1.0f / (1.0f + expf(-x)) - label;
  }
};

template <typename F>
__global__ void RowSumKernel(F f, const float* x, const float* labels, float factor, int64_t rows,
                             int64_t columns, float* sums) {
  __shared__ double scratch[32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    double sum = 0;
    for (int64_t i = row * columns + threadIdx.x; i < (row + 1) * columns; i += blockDim.x) {
      sum += f(x[i], labels == nullptr ? 0.0f : labels[i]);
    }
    sum = BlockReduce(sum, 0.0, scratch, SumAll{});
    if (threadIdx.x == 0) sums[row] = static_cast<float>(sum * factor);
  }
}

template <typename F>
__global__ void RowSumGradientKernel(F f, const float* x, const float* labels, float scale,
                                     const StepValues* values, int64_t count, float* gradient) {
  if (values != nullptr) scale *= values->loss_scale;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    gradient[i] = f(x[i], labels[i]) * scale;
  }
}

template <typename T>
__global__ void SoftmaxKernel(const float* scores, bool causal, int64_t period, int64_t rows,
                              int64_t columns, T* p) {
  __shared__ float scratch[32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* const x = scores + row * columns;
    const int64_t seen = causal ? row % period + 1 : columns;
    float top = -kInfinity;
    for (int64_t i = threadIdx.x; i < seen; i += blockDim.x) top = fmaxf(top, x[i]);
    top = BlockReduce(top, -kInfinity, scratch, MaxAll{});
    float sum = 0;
    for (int64_t i = threadIdx.x; i < seen; i += blockDim.x) sum += expf(x[i] - top);
    sum = BlockReduce(sum, 0.0f, scratch, SumAll{});
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      p[row * columns + i] = FromFloat<T>(i < seen ? expf(x[i] - top) / sum : 0.0f);
    }
  }
}

template <typename T>
__global__ void SoftmaxGradientKernel(const T* p, const float* dp, float scale, int64_t rows,
                                      int64_t columns, T* ds) {
  __shared__ float scratch[32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t begin = row * columns;
    float dot = 0;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      dot += ToFloat(p[begin + i]) * dp[begin + i];
    }
    dot = BlockReduce(dot, 0.0f, scratch, SumAll{});
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      ds[begin + i] = FromFloat<T>(ToFloat(p[begin + i]) * (dp[begin + i] - dot) * scale);
    }
  }
}

// Calls f<T, kPack>(first logit) with the logits' type and the pack that fits them and `other`.
template <typename F>
cudaError_t WithLogits(const LogitRows& logits, const void* other, F f) {
  return WithType(logits.element, [&](auto zero) {
    using T = decltype(zero);
    return WithPack<T>(
        logits.row_stride,
        [&]<int kPack>() {
          return f.template operator()<T, kPack>(static_cast<const T*>(logits.data));
        },
        logits.data, other);
  });
}

}  // namespace

cudaError_t LaunchSoftmaxCrossEntropy(const LogitRows& logits, const int32_t* labels, float* losses,
                                      float* log_sums, cudaStream_t stream) {
  return WithLogits(logits, nullptr, [&]<typename T, int kPack>(const T* x) {
    CrossEntropyKernel<T, kPack><<<RowBlocks(logits.rows), RowThreads(logits.columns), 0, stream>>>(
        x, labels, logits.rows, logits.columns, logits.row_stride, losses, log_sums);
    return cudaGetLastError();
  });
}

cudaError_t LaunchSoftmaxCrossEntropyGradient(const LogitRows& logits, const int32_t* labels,
                                              const float* log_sums, float scale,
                                              const StepValues* values, void* gradient,
                                              cudaStream_t stream) {
  return WithLogits(logits, gradient, [&]<typename T, int kPack>(const T* x) {
    const unsigned blocks = RowBlocks(logits.rows), threads = RowThreads(logits.columns);
    CrossEntropyGradientKernel<T, kPack><<<blocks, threads, 0, stream>>>(
        x, labels, log_sums, scale, values, logits.rows, logits.columns, logits.row_stride,
        static_cast<T*>(gradient));
    return cudaGetLastError();
  });
}

cudaError_t LaunchCountGreatest(const LogitRows& logits, const int32_t* labels, int64_t period,
                                uint32_t* correct, cudaStream_t stream) {
  constexpr int kThreads = 256;
  return WithLogits(logits, nullptr, [&]<typename T, int kPack>(const T* x) {
    const unsigned blocks = BlocksFor(logits.rows, kThreads / 32);
    CountGreatestKernel<T, kPack><<<blocks, kThreads, 0, stream>>>(
        x, labels, logits.rows, logits.columns, logits.row_stride, period, correct);
    return cudaGetLastError();
  });
}

cudaError_t LaunchCountSigns(const float* logits, const float* labels, int64_t count,
                             int64_t period, uint32_t* correct, cudaStream_t stream) {
  constexpr int kThreads = 256;
  CountSignsKernel<<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(logits, labels, count,
                                                                        period, correct);
  return cudaGetLastError();
}

cudaError_t LaunchRowSums(RowSum kind, const float* x, const float* labels, float factor,
                          int64_t rows, int64_t columns, float* sums, cudaStream_t stream) {
  const auto launch = [&](auto f) {
    RowSumKernel<<<RowBlocks(rows), RowThreads(columns), 0, stream>>>(f, x, labels, factor, rows,
                                                                      columns, sums);
    return cudaGetLastError();
  };
  switch (kind) {
    case RowSum::kSum: return launch(Itself{});
    case RowSum::kSquaredError: return launch(SquaredError{});
    case RowSum::kBinaryCrossEntropy: return launch(BinaryCrossEntropy{});
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchRowSumsGradient(RowSum kind, const float* x, const float* labels, float scale,
                                  const StepValues* values, int64_t count, float* gradient,
                                  cudaStream_t stream) {
  constexpr int kThreads = 256;
  const auto launch = [&](auto f) {
    RowSumGradientKernel<<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
        f, x, labels, scale, values, count, gradient);
    return cudaGetLastError();
  };
  switch (kind) {
    case RowSum::kSum: break;
    case RowSum::kSquaredError: return launch(SquaredErrorGradient{});
    case RowSum::kBinaryCrossEntropy: return launch(BinaryCrossEntropyGradient{});
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchSoftmax(const float* scores, bool causal, int64_t period, int64_t rows,
                          int64_t columns, Element element, void* p, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    SoftmaxKernel<T><<<RowBlocks(rows), RowThreads(columns), 0, stream>>>(
        scores, causal, period, rows, columns, static_cast<T*>(p));
    return cudaGetLastError();
  });
}

cudaError_t LaunchSoftmaxGradient(Element element, const void* p, const float* dp, float scale,
                                  int64_t rows, int64_t columns, void* ds, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    SoftmaxGradientKernel<T><<<RowBlocks(rows), RowThreads(columns), 0, stream>>>(
        static_cast<const T*>(p), dp, scale, rows, columns, static_cast<T*>(ds));
    return cudaGetLastError();
  });
}

}  // namespace starling::cuda
