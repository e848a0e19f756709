// One optimizer step, element by element, shared by the CPU's loops and nvcc's kernels.
#ifndef STARLING_KERNELS_OPTIMIZER_STEP_H_
#define STARLING_KERNELS_OPTIMIZER_STEP_H_

#include <cmath>

#ifdef __CUDACC__
#define STARLING_HOST_DEVICE __host__ __device__
#else
#define STARLING_HOST_DEVICE
#endif

namespace starling {

// For every element w, in fp32:
//   g = scale * gradient + decay * w
//   kMomentum   v = momentum * v + g; w -= rate * v                             v: slot0
//   kAdam       m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g * g;
//               w = keep * w - rate * m / (root * sqrt(v) + epsilon)            m, v: slot0, slot1
//   kStatistic  w = (1 - momentum) * w + momentum * g                           no slots
// server/shard/apply/update.h says where the coefficients come from.
struct OptimizerStep {
  enum Kind { kMomentum, kAdam, kStatistic };
  Kind kind = kMomentum;
  float scale = 1;
  float decay = 0;
  float rate = 0;
  float momentum = 0;
  float beta1 = 0, beta2 = 0, keep = 1, root = 1, epsilon = 0;  // kAdam
};

STARLING_HOST_DEVICE inline void MomentumStep(const OptimizerStep& step, float gradient, float& w,
                                              float& v) {
  const float g = step.scale * gradient + step.decay * w;
  v = step.momentum * v + g;
  w -= step.rate * v;
}

STARLING_HOST_DEVICE inline void AdamStep(const OptimizerStep& step, float gradient, float& w,
                                          float& m, float& v) {
  const float g = step.scale * gradient + step.decay * w;
  m = step.beta1 * m + (1.0f - step.beta1) * g;
  v = step.beta2 * v + (1.0f - step.beta2) * (g * g);
  w = step.keep * w - step.rate * m / (step.root * sqrtf(v) + step.epsilon);
}

STARLING_HOST_DEVICE inline void StatisticStep(const OptimizerStep& step, float gradient,
                                               float& w) {
  const float g = step.scale * gradient + step.decay * w;
  w = (1.0f - step.momentum) * w + step.momentum * g;
}

}  // namespace starling

#undef STARLING_HOST_DEVICE

#endif  // STARLING_KERNELS_OPTIMIZER_STEP_H_
