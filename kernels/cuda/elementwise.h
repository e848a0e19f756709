// Elementwise kernels. These functions order kernels on a stream and return the launch's error.
// Pointers are device memory; those of values are 64-byte aligned, and an output may alias an
// input.
#ifndef STARLING_KERNELS_CUDA_ELEMENTWISE_H_
#define STARLING_KERNELS_CUDA_ELEMENTWISE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/element.h"
#include "kernels/cuda/philox.h"
#include "kernels/step_values.h"

namespace starling::cuda {

enum class Activation { kRelu, kGelu, kGeluTanh, kSigmoid, kTanh, kClip };

struct ActivationOf {
  Activation kind = Activation::kRelu;
  float minimum = 0, maximum = 0;  // kClip
};

// Whether the gradient is computed from the output, not from the input.
inline constexpr bool GradientReadsOutput(Activation kind) {
  return kind == Activation::kRelu || kind == Activation::kSigmoid || kind == Activation::kTanh;
}

cudaError_t LaunchActivation(const ActivationOf& f, Element element, const void* x, void* y,
                             int64_t count, cudaStream_t stream);
// `kept`: the input or output, as GradientReadsOutput says.
cudaError_t LaunchActivationGradient(const ActivationOf& f, Element element, const void* kept,
                                     const void* dy, void* dx, int64_t count, cudaStream_t stream);

cudaError_t LaunchAdd(Element element, const void* a, const void* b, void* sum, int64_t count,
                      cudaStream_t stream);
cudaError_t LaunchMultiply(Element element, const void* a, const void* b, void* product,
                           int64_t count, cudaStream_t stream);
// y[n][c][p] += bias[c], or y[n][p][c] with channels last.
cudaError_t LaunchAddToChannels(Element element, void* y, const float* bias, int64_t batch,
                                int64_t channels, int64_t points, bool channels_last,
                                cudaStream_t stream);
// y = x * factor.
cudaError_t LaunchScale(Element element, float factor, const void* x, void* y, int64_t count,
                        cudaStream_t stream);
// y = value; times the loss scale of `values` unless that is null.
cudaError_t LaunchFill(float value, const StepValues* values, float* y, int64_t count,
                       cudaStream_t stream);
// *to = values.
cudaError_t LaunchSetStepValues(const StepValues& values, StepValues* to, cudaStream_t stream);

// Elements of x, indexed as in kernels/random.h, whose random word is below `threshold` become 0;
// the others are multiplied by `scale`. Bit i % 8 of mask[i / 8] says which were kept. The key's
// step and micro-batch are replaced by those of `values` unless that is null.
cudaError_t LaunchDropout(Element element, const PhiloxKey& key, const StepValues* values,
                          uint32_t threshold, float scale, const void* x, void* y, uint8_t* mask,
                          int64_t count, cudaStream_t stream);
cudaError_t LaunchDropoutGradient(Element element, float scale, const uint8_t* mask, const void* dy,
                                  void* dx, int64_t count, cudaStream_t stream);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_ELEMENTWISE_H_
