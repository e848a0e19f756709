// Kernels on planes with channels last, [N, H, W, C]: batch norm and pooling. These functions order
// kernels on a stream and return the launch's error. Pointers are device memory.
#ifndef STARLING_KERNELS_CUDA_PLANES_H_
#define STARLING_KERNELS_CUDA_PLANES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/columns.h"
#include "kernels/cuda/element.h"

namespace starling::cuda {

// ---- Batch norm, on rows of C channels --------------------------------------------------------

// Per channel: mean, biased variance, 1 / sqrt(variance + epsilon).
struct BatchStatistics {
  float* mean = nullptr;
  float* variance = nullptr;
  float* scale = nullptr;
};

// Over the batch. `workspace`: plan.workspace_bytes(); plan's columns are the channels.
cudaError_t LaunchBatchStatistics(Element element, const void* x, const ColumnPlan& plan,
                                  float epsilon, const BatchStatistics& to, void* workspace,
                                  cudaStream_t stream);
// scale = 1 / sqrt(variance + epsilon).
cudaError_t LaunchInverseRoot(const float* variance, float epsilon, int64_t channels, float* scale,
                              cudaStream_t stream);
// What normalisation reads per channel; each is [channels].
struct ChannelFactors {
  const float* mean = nullptr;
  const float* scale = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
};

// y = (x - mean) * scale * weight + bias, plus `other` unless that is null; with `relu`, max(0, y).
// y may alias x or `other`.
cudaError_t LaunchNormalize(Element element, const void* x, const void* other, bool relu,
                            const ChannelFactors& factors, const ColumnPlan& plan, void* y,
                            cudaStream_t stream);

// What the gradients are computed from. With `relu`, dy counts only where the ReLU passed its
// input, which is where y > 0; if y is null, that is computed from x, so there was no `other`.
struct BatchNormOf {
  Element element = Element::kFloat;
  bool relu = false;
  const void* x = nullptr;
  const void* y = nullptr;
  const void* dy = nullptr;
};

// Results, all [channels].
struct BatchNormSums {
  float* dy = nullptr;       // of dy: the gradient of bias
  float* product = nullptr;  // of dy * (x - mean) * scale: that of weight
  // Either may be null: the batch's mean and variance, times `share`.
  float* mean_share = nullptr;
  float* variance_share = nullptr;
  const float* variance = nullptr;
  float share = 1;
};
cudaError_t LaunchBatchNormSums(const BatchNormOf& of, const ChannelFactors& factors,
                                const ColumnPlan& plan, const BatchNormSums& to, void* workspace,
                                cudaStream_t stream);
// Gradients of x and of `other`; either may be null. dx may alias dy.
cudaError_t LaunchBatchNormGradient(const BatchNormOf& of, const ChannelFactors& factors,
                                    const float* dy_sums, const float* product_sums,
                                    const ColumnPlan& plan, void* dx, void* dother,
                                    cudaStream_t stream);

// ---- Pooling -----------------------------------------------------------------------------------

struct PoolShape {
  int64_t batch = 0, channels = 0;
  int64_t in_height = 0, in_width = 0, out_height = 0, out_width = 0;
  int64_t kernel_height = 0, kernel_width = 0;
  int64_t stride_height = 1, stride_width = 1;
  int64_t padding_height = 0, padding_width = 0;
};

// `at`: for each output, which element of its window is the first maximum (row by row, padding
// counted); kept for the gradient, or null. At most 65,536 elements in a window.
cudaError_t LaunchMaxPool(Element element, const PoolShape& shape, const void* x, void* y,
                          uint16_t* at, cudaStream_t stream);
cudaError_t LaunchMaxPoolGradient(Element element, const PoolShape& shape, const uint16_t* at,
                                  const void* dy, void* dx, cudaStream_t stream);
// Padding counts as zeros.
cudaError_t LaunchAveragePool(Element element, const PoolShape& shape, const void* x, void* y,
                              cudaStream_t stream);
cudaError_t LaunchAveragePoolGradient(Element element, const PoolShape& shape, const void* dy,
                                      void* dx, cudaStream_t stream);
// [batch, points, channels] -> [batch, channels], and back.
cudaError_t LaunchGlobalAverage(Element element, const void* x, int64_t batch, int64_t points,
                                int64_t channels, void* y, cudaStream_t stream);
cudaError_t LaunchGlobalAverageGradient(Element element, const void* dy, int64_t batch,
                                        int64_t points, int64_t channels, void* dx,
                                        cudaStream_t stream);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_PLANES_H_
