// Errors of CUDA as absl::Status.
#ifndef STARLING_KERNELS_CUDA_STATUS_H_
#define STARLING_KERNELS_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "common/base/status_macros.h"

namespace starling::cuda {

// Whether nothing works on the GPU any more for this process, whatever is called: it fell off the
// bus, a kernel crashed, its memory is damaged.
bool DeviceIsLost(cudaError_t error);

// `call` is the call's text, of which its name is said. kUnavailable: the device is lost.
// kResourceExhausted: no memory. kInternal: any other error. A later call does not report the same
// error again, but for a lost device's.
absl::Status CudaStatus(cudaError_t error, const char* call);

}  // namespace starling::cuda

#define STARLING_RETURN_IF_CUDA_ERROR(call) \
  STARLING_RETURN_IF_ERROR(::starling::cuda::CudaStatus((call), #call))

#endif  // STARLING_KERNELS_CUDA_STATUS_H_
