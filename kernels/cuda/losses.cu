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

__global__ void CrossEntropyKernel(const float* logits, const int32_t* labels, int64_t rows,
                                   int64_t columns, float* losses, float* log_sums) {
  __shared__ float scratch[32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* const x = logits + row * columns;
    float top = -kInfinity;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) top = fmaxf(top, x[i]);
    top = BlockReduce(top, -kInfinity, scratch, MaxAll{});
    float sum = 0;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(x[i] - top);
    sum = BlockReduce(sum, 0.0f, scratch, SumAll{});
    if (threadIdx.x != 0) continue;
    const float log_sum = top + logf(sum);
    losses[row] = InRange(labels[row], columns) ? log_sum - x[labels[row]] : kNan;
    if (log_sums != nullptr) log_sums[row] = log_sum;
  }
}

__global__ void CrossEntropyGradientKernel(const float* logits, const int32_t* labels,
                                           const float* log_sums, float scale,
                                           const StepValues* values, int64_t rows, int64_t columns,
                                           float* gradient) {
  if (values != nullptr) scale *= values->loss_scale;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int32_t label = labels[row];
    const float factor = InRange(label, columns) ? scale : kNan;
    const float log_sum = log_sums[row];
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      const float p = expf(logits[row * columns + i] - log_sum);
      gradient[row * columns + i] = (p - (i == label ? 1.0f : 0.0f)) * factor;
    }
  }
}

// Of two columns, the one with the greater logit; of equals, the first.
struct Candidate {
  float logit;
  int64_t column;
};

__device__ Candidate Better(const Candidate& a, const Candidate& b) {
  const bool second = b.logit > a.logit || (b.logit == a.logit && b.column < a.column);
  return second ? b : a;
}

// A warp per row. Integer sums are the same in any order.
__global__ void CountGreatestKernel(const float* logits, const int32_t* labels, int64_t rows,
                                    int64_t columns, int64_t period, uint32_t* correct) {
  const int64_t stride = int64_t{gridDim.x} * (blockDim.x / 32);
  for (int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; row < rows;
       row += stride) {
    const float* const x = logits + row * columns;
    Candidate best = {-kInfinity, columns};
    for (int64_t i = threadIdx.x % 32; i < columns; i += 32) best = Better(best, {x[i], i});
    for (int offset = 16; offset > 0; offset /= 2) {
      best = Better(best, {__shfl_xor_sync(~0u, best.logit, offset),
                           __shfl_xor_sync(~0u, best.column, offset)});
    }
    if (threadIdx.x % 32 == 0 && best.column == labels[row]) atomicAdd(correct + row / period, 1u);
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

}  // namespace

cudaError_t LaunchSoftmaxCrossEntropy(const float* logits, const int32_t* labels, int64_t rows,
                                      int64_t columns, float* losses, float* log_sums,
                                      cudaStream_t stream) {
  CrossEntropyKernel<<<RowBlocks(rows), RowThreads(columns), 0, stream>>>(
      logits, labels, rows, columns, losses, log_sums);
  return cudaGetLastError();
}

cudaError_t LaunchSoftmaxCrossEntropyGradient(const float* logits, const int32_t* labels,
                                              const float* log_sums, float scale,
                                              const StepValues* values, int64_t rows,
                                              int64_t columns, float* gradient,
                                              cudaStream_t stream) {
  CrossEntropyGradientKernel<<<RowBlocks(rows), RowThreads(columns), 0, stream>>>(
      logits, labels, log_sums, scale, values, rows, columns, gradient);
  return cudaGetLastError();
}

cudaError_t LaunchCountGreatest(const float* logits, const int32_t* labels, int64_t rows,
                                int64_t columns, int64_t period, uint32_t* correct,
                                cudaStream_t stream) {
  constexpr int kThreads = 256;
  CountGreatestKernel<<<BlocksFor(rows, kThreads / 32), kThreads, 0, stream>>>(
      logits, labels, rows, columns, period, correct);
  return cudaGetLastError();
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
