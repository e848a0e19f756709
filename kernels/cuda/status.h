// CUDA errors as absl::Status.
#ifndef STARLING_KERNELS_CUDA_STATUS_H_
#define STARLING_KERNELS_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "common/base/status_macros.h"

namespace starling::cuda {

// Whether every further call on the GPU fails for this process: it fell off the bus, a kernel
// crashed, its memory is corrupt.
bool DeviceIsLost(cudaError_t error);

// `call` is the text of the call; the message says its name. kUnavailable: the device is lost.
// kResourceExhausted: no memory. kInternal: any other error. Clears the error, so that later calls
// do not report it again, unless the device is lost.
absl::Status CudaStatus(cudaError_t error, const char* call);

}  // namespace starling::cuda

// The status of a call, by its text.
#define STARLING_CUDA_STATUS(call) ::starling::cuda::CudaStatus((call), #call)

#define STARLING_RETURN_IF_CUDA_ERROR(call) \
  STARLING_RETURN_IF_ERROR(::starling::cuda::CudaStatus((call), #call))

#endif  // STARLING_KERNELS_CUDA_STATUS_H_
