// One pass over w, its slots and the gradient, 16 bytes at a time: memory bandwidth is the limit.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/update.h"

namespace starling::cuda {
namespace {

constexpr int kThreads = 256;

// kPack elements at a time.
template <int kPack, typename Each>
__global__ void UpdateKernel(int64_t packs, Each each) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += stride) {
    each.template Pass<kPack>(i * kPack);
  }
}

struct Momentum {
  OptimizerStep step;
  const float* gradient;
  float *w, *v;
  template <int kPack>
  __device__ void Pass(int64_t i) const {
    const auto g = LoadPack<kPack>(gradient + i);
    auto ws = LoadPack<kPack>(w + i), vs = LoadPack<kPack>(v + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) MomentumStep(step, g.at[k], ws.at[k], vs.at[k]);
    StorePack(w + i, ws);
    StorePack(v + i, vs);
  }
};
struct Adam {
  OptimizerStep step;
  const float* gradient;
  float *w, *m, *v;
  template <int kPack>
  __device__ void Pass(int64_t i) const {
    const auto g = LoadPack<kPack>(gradient + i);
    auto ws = LoadPack<kPack>(w + i), ms = LoadPack<kPack>(m + i), vs = LoadPack<kPack>(v + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) AdamStep(step, g.at[k], ws.at[k], ms.at[k], vs.at[k]);
    StorePack(w + i, ws);
    StorePack(m + i, ms);
    StorePack(v + i, vs);
  }
};
struct Statistic {
  OptimizerStep step;
  const float* gradient;
  float* w;
  template <int kPack>
  __device__ void Pass(int64_t i) const {
    const auto g = LoadPack<kPack>(gradient + i);
    auto ws = LoadPack<kPack>(w + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) StatisticStep(step, g.at[k], ws.at[k]);
    StorePack(w + i, ws);
  }
};

template <typename Each, typename... Data>
cudaError_t Launch(int64_t count, const Each& each, cudaStream_t stream, const Data*... data) {
  return WithPack<float>(
      count,
      [&]<int kPack>() {
        const int64_t packs = count / kPack;
        UpdateKernel<kPack><<<BlocksFor(packs, kThreads), kThreads, 0, stream>>>(packs, each);
        return cudaGetLastError();
      },
      data...);
}

}  // namespace

cudaError_t LaunchUpdate(const OptimizerStep& step, const float* gradient, float* w, float* slot0,
                         float* slot1, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  switch (step.kind) {
    case OptimizerStep::kMomentum:
      return Launch(count, Momentum{step, gradient, w, slot0}, stream, gradient, w, slot0);
    case OptimizerStep::kAdam:
      return Launch(count, Adam{step, gradient, w, slot0, slot1}, stream, gradient, w, slot0,
                    slot1);
    case OptimizerStep::kStatistic:
      return Launch(count, Statistic{step, gradient, w}, stream, gradient, w);
  }
  return cudaErrorInvalidValue;
}

}  // namespace starling::cuda
