// The CPU as a device: oneDNN for the heavy operators, plain loops for the rest.
#ifndef STARLING_KERNELS_CPU_CPU_DEVICE_H_
#define STARLING_KERNELS_CPU_CPU_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace starling {

// Calls run inline on the calling thread, helped by its own spec.kernel_threads - 1 OpenMP threads,
// so N threads with a stream each compute N micro-batches at once. Results depend only on the
// instruction set and on spec.kernel_threads, whatever the OMP_* and ONEDNN_* environment says.
// fp32 only. kFailedPrecondition: the CPU lacks SSE4.1.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice();

}  // namespace starling

#endif  // STARLING_KERNELS_CPU_CPU_DEVICE_H_
