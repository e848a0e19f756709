// Kernels on tables whose rows are gathered or scattered. These functions order kernels on a stream
// and return the launch's error. Pointers are device memory.
#ifndef STARLING_KERNELS_CUDA_TABLES_H_
#define STARLING_KERNELS_CUDA_TABLES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/element.h"

namespace starling::cuda {

// y[i] = table[indices[i]], rows of `width`, for i in [0, count); NaN if the index is not in [0,
// rows). `bad`: where to report such an index, as IndexWatch::word(); may be null.
cudaError_t LaunchGather(Element element, const int32_t* indices, const float* table, int64_t count,
                         int64_t rows, int64_t width, void* y, uint64_t* bad, cudaStream_t stream);

// The size of LaunchScatter's workspace.
cudaError_t ScatterWorkspaceBytes(int64_t count, int64_t rows, size_t* bytes);
// table[r] = sum of dy[i] over the i with indices[i] == r, in the order of i: the same bits every
// time. Indices outside [0, rows) are skipped.
cudaError_t LaunchScatter(Element element, const int32_t* indices, const void* dy, int64_t count,
                          int64_t rows, int64_t width, float* table, void* workspace,
                          size_t workspace_bytes, cudaStream_t stream);

// y[n] = x[n] + table, for each of `samples` samples of `count` elements. y may alias x.
cudaError_t LaunchAddToEach(Element element, const void* x, const float* table, int64_t samples,
                            int64_t count, void* y, cudaStream_t stream);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_TABLES_H_
