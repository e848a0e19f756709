// What nvcc provides to kernels, for g++: included before each .cu file that rewrite.py has turned
// into C++.
#ifndef STARLING_KERNELS_CUDA_EMULATION_DEVICE_CODE_H_
#define STARLING_KERNELS_CUDA_EMULATION_DEVICE_CODE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>

#include "kernels/cuda/emulation/block.h"
#include "kernels/cuda/emulation/runtime.h"

#undef __global__
#undef __device__
#undef __host__
#define __global__
#undef __launch_bounds__
#define __launch_bounds__(...)
#define __device__
#define __host__
#define threadIdx (::starling::emulation::Here().thread)
#define blockIdx (::starling::emulation::Here().block)
#define blockDim (::starling::emulation::Here().block_size)
#define gridDim (::starling::emulation::Here().grid_size)
#define __syncthreads() ::starling::emulation::Barrier(__FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, lane_mask) \
  ::starling::emulation::Shuffle(mask, value, lane_mask, __LINE__)

namespace starling::emulation {

template <typename T>
T Shuffle(uint32_t mask, T value, int lane_mask, int line) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = ShuffleXor(mask, bits, lane_mask, line);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// rewrite.py turns `__shared__ float x[2][3];` into `auto& x = Shared<float[2][3]>(...);`.
template <typename T>
T& Shared(const char* file, int line) {
  return *static_cast<T*>(SharedMemory(sizeof(T), file, line));
}

// `kernel` is called with copies of the arguments, as on the GPU.
template <typename Kernel, typename... Args>
void Launch(const char* name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
            Kernel kernel, Args... args) {
  OrderLaunch(name, grid, block, shared, stream, [kernel, args...] { kernel(args...); });
}

}  // namespace starling::emulation

inline unsigned atomicAdd(unsigned* to, unsigned value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

#endif  // STARLING_KERNELS_CUDA_EMULATION_DEVICE_CODE_H_
