// The boundary between a program and libstarling_cuda.so, which it opens at run time: two C
// functions. They hand over a C++ object (kernels/device.h), so both sides must be compiled from
// the same headers, by compilers and with an Abseil of the same layouts. DeviceAbi() describes what
// that depends on; two sides whose texts differ refuse each other.
#ifndef STARLING_KERNELS_CUDA_ABI_H_
#define STARLING_KERNELS_CUDA_ABI_H_

#include <cstddef>
#include <string>

#include "kernels/device.h"

namespace starling {

inline constexpr char kCudaLibraryName[] = "libstarling_cuda.so";

// "interface 3f6d..., Abseil 20220623, ...": a digest of this file, kernels/device.h and
// kernels/operator.h, and the properties of compiler and Abseil that change their layout.
std::string DeviceAbi();

// `const char* starling_cuda_abi()`: DeviceAbi() of the shared object, which owns the text. Must be
// called before the other function.
inline constexpr char kCudaAbiSymbol[] = "starling_cuda_abi";
using CudaAbiFunction = const char*();

// `int starling_cuda_open(Device** device, char* error, size_t error_bytes)`: 0 and a new device,
// which the caller owns; or an absl::StatusCode and its message in `error` (terminated, truncated
// if longer). The GPU is the first that the driver lists (CUDA_VISIBLE_DEVICES).
inline constexpr char kCudaOpenSymbol[] = "starling_cuda_open";
using CudaOpenFunction = int(Device** device, char* error, size_t error_bytes);

// Writes the message of `status` to `error`. Returns its code.
int ReturnStatus(const absl::Status& status, char* error, size_t error_bytes);

}  // namespace starling

#endif  // STARLING_KERNELS_CUDA_ABI_H_
