// The boundary between a program and libstarling_cuda.so, which it opens at run time: two C
// functions. What they hand over is a C++ object (kernels/device.h), so both sides must have been
// compiled from the same headers, by compilers and with an Abseil that lay things out alike;
// DeviceAbi() says in a text what that depends on, and two sides with different texts do not go on.
#ifndef STARLING_KERNELS_CUDA_ABI_H_
#define STARLING_KERNELS_CUDA_ABI_H_

#include <cstddef>
#include <string>

#include "kernels/device.h"

namespace starling {

inline constexpr char kCudaLibraryName[] = "libstarling_cuda.so";

// "interface 3f6d..., Abseil 20220623, ...": a digest of this file, kernels/device.h and
// kernels/operator.h, and what they mean differently to another compiler or Abseil.
std::string DeviceAbi();

// `const char* starling_cuda_abi()`: DeviceAbi() of the shared object; its own memory. To be called
// before the other one.
inline constexpr char kCudaAbiSymbol[] = "starling_cuda_abi";
using CudaAbiFunction = const char*();

// `int starling_cuda_open(Device** device, char* error, size_t error_bytes)`: 0, and a new device,
// which is the caller's; or an absl::StatusCode, and why not, in `error` (terminated, cut off where
// it is longer). The GPU is the first of those that the driver shows (CUDA_VISIBLE_DEVICES).
inline constexpr char kCudaOpenSymbol[] = "starling_cuda_open";
using CudaOpenFunction = int(Device** device, char* error, size_t error_bytes);

// Says in `error` what `status` says. Returns its code.
int ReturnStatus(const absl::Status& status, char* error, size_t error_bytes);

}  // namespace starling

#endif  // STARLING_KERNELS_CUDA_ABI_H_
