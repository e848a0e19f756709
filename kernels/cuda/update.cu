// One pass over w, its slots and the gradient: memory bandwidth is the limit, and neighbouring
// threads read neighbouring floats.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/update.h"

namespace starling::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Each>
__global__ void UpdateKernel(int64_t count, Each each) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) each(i);
}

struct Momentum {
  OptimizerStep step;
  const float* gradient;
  float *w, *v;
  __device__ void operator()(int64_t i) const { MomentumStep(step, gradient[i], w[i], v[i]); }
};
struct Adam {
  OptimizerStep step;
  const float* gradient;
  float *w, *m, *v;
  __device__ void operator()(int64_t i) const { AdamStep(step, gradient[i], w[i], m[i], v[i]); }
};
struct Statistic {
  OptimizerStep step;
  const float* gradient;
  float* w;
  __device__ void operator()(int64_t i) const { StatisticStep(step, gradient[i], w[i]); }
};

template <typename Each>
cudaError_t Launch(int64_t count, const Each& each, cudaStream_t stream) {
  UpdateKernel<<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(count, each);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchUpdate(const OptimizerStep& step, const float* gradient, float* w, float* slot0,
                         float* slot1, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  switch (step.kind) {
    case OptimizerStep::kMomentum: return Launch(count, Momentum{step, gradient, w, slot0}, stream);
    case OptimizerStep::kAdam: return Launch(count, Adam{step, gradient, w, slot0, slot1}, stream);
    case OptimizerStep::kStatistic: return Launch(count, Statistic{step, gradient, w}, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace starling::cuda
