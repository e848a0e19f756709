// Opens libstarling_cuda.so, so that one program serves machines with a GPU and without.
#ifndef STARLING_KERNELS_CUDA_LIBRARY_H_
#define STARLING_KERNELS_CUDA_LIBRARY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/device.h"

namespace starling {

// The GPU as a device. `path` is the shared object; empty: the one in this program's folder, else
// the one that the system's loader finds. It stays loaded until the process ends. Blocks for
// seconds, for `patience` at most. Every message says what was expected, what is there and what to
// do.
//
// kNotFound: there is no shared object. kFailedPrecondition: it cannot be loaded (a library that it
// needs is missing; the message says which), belongs to another build, or finds no usable GPU,
// driver or version. kDeadlineExceeded: the driver does not answer; the thread that waits for it is
// abandoned.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& path,
                                                       absl::Duration patience = absl::Minutes(1));

}  // namespace starling

#endif  // STARLING_KERNELS_CUDA_LIBRARY_H_
