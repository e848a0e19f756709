// Row-wise kernels on matrices: layer norm, softmax cross-entropy, losses between values, row sums.
// These functions order kernels on a stream and return the launch's error. Pointers are device
// memory.
#ifndef STARLING_KERNELS_CUDA_ROWS_H_
#define STARLING_KERNELS_CUDA_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/columns.h"
#include "kernels/cuda/element.h"
#include "kernels/step_values.h"

namespace starling::cuda {

// x, y: [rows, columns]. mean, scale: [rows], each row's mean and 1 / sqrt(variance + epsilon);
// kept for the gradient, or null.
cudaError_t LaunchLayerNorm(Element element, const void* x, const float* weight, const float* bias,
                            float epsilon, int64_t rows, int64_t columns, void* y, float* mean,
                            float* scale, cudaStream_t stream);
// dx may alias dy.
cudaError_t LaunchLayerNormGradient(Element element, const void* x, const float* weight,
                                    const float* mean, const float* scale, const void* dy,
                                    int64_t rows, int64_t columns, void* dx, cudaStream_t stream);
// dweight, dbias: [columns]; either may be null. `workspace`: plan.workspace_bytes().
cudaError_t LaunchLayerNormParameterGradients(Element element, const void* x, const float* mean,
                                              const float* scale, const void* dy,
                                              const ColumnPlan& plan, float* dweight, float* dbias,
                                              void* workspace, cudaStream_t stream);

// sums: [kept], over the rows of x, of its first `kept` columns.
cudaError_t LaunchColumnSums(Element element, const void* x, const ColumnPlan& plan, int64_t kept,
                             float* sums, void* workspace, cudaStream_t stream);

// Logits, one row per label. Rows may be padded.
struct LogitRows {
  Element element = Element::kFloat;
  const void* data = nullptr;
  int64_t rows = 0, columns = 0;
  int64_t row_stride = 0;  // elements from one row to the next
};

// losses[r] = log(sum(exp(logits[r]))) - logits[r][labels[r]], computed in float; NaN for a label
// out of range. log_sums: [rows], for the gradient, or null.
cudaError_t LaunchSoftmaxCrossEntropy(const LogitRows& logits, const int32_t* labels, float* losses,
                                      float* log_sums, cudaStream_t stream);
// `gradient` is of the logits' type, and its rows are as far apart, with zeros between them.
// Multiplied by `scale` and, unless `values` is null, by its loss scale; NaN for a label out of
// range.
cudaError_t LaunchSoftmaxCrossEntropyGradient(const LogitRows& logits, const int32_t* labels,
                                              const float* log_sums, float scale,
                                              const StepValues* values, void* gradient,
                                              cudaStream_t stream);

// Adds 1 to correct[r / period] for each row r whose label is the index of its greatest logit, the
// first among equals.
cudaError_t LaunchCountGreatest(const LogitRows& logits, const int32_t* labels, int64_t period,
                                uint32_t* correct, cudaStream_t stream);
// Adds 1 to correct[i / period] for each logit i that is above 0 exactly if its label is above 0.5.
cudaError_t LaunchCountSigns(const float* logits, const float* labels, int64_t count,
                             int64_t period, uint32_t* correct, cudaStream_t stream);

enum class RowSum { kSum, kSquaredError, kBinaryCrossEntropy };

// sums[r] = factor times the sum over row r of: x; (x - label)^2; or the binary cross-entropy of
// logits x and labels. `labels` is null for kSum.
cudaError_t LaunchRowSums(RowSum kind, const float* x, const float* labels, float factor,
                          int64_t rows, int64_t columns, float* sums, cudaStream_t stream);
// The gradient of `scale` times that sum, times the loss scale of `values` unless that is null. For
// kSum use LaunchFill.
cudaError_t LaunchRowSumsGradient(RowSum kind, const float* x, const float* labels, float scale,
                                  const StepValues* values, int64_t count, float* gradient,
                                  cudaStream_t stream);

// p = softmax over each row of scores [rows, columns]; `causal`: row r of each `period` rows sees
// columns 0..r % period, the others become 0. p may alias scores if it is float.
cudaError_t LaunchSoftmax(const float* scores, bool causal, int64_t period, int64_t rows,
                          int64_t columns, Element element, void* p, cudaStream_t stream);
// ds = p * (dp - sum over the row of p * dp) * scale; ds may alias dp if it is float.
cudaError_t LaunchSoftmaxGradient(Element element, const void* p, const float* dp, float scale,
                                  int64_t rows, int64_t columns, void* ds, cudaStream_t stream);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_ROWS_H_
