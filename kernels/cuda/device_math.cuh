// Shared by kernels: elements as floats, 16 bytes at a time; sums over a warp and a block in a
// fixed order. For .cu files.
#ifndef STARLING_KERNELS_CUDA_DEVICE_MATH_CUH_
#define STARLING_KERNELS_CUDA_DEVICE_MATH_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/element.h"

namespace starling::cuda {

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(__half x) { return __half2float(x); }

template <typename T>
__device__ T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// As many elements as one 16-byte load or store moves.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(T);
  T at[kCount];
};

inline bool Aligned16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Calls `f` with a value of the type that `element` names.
template <typename F>
cudaError_t WithType(Element element, F f) {
  switch (element) {
    case Element::kFloat: return f(float{});
    case Element::kBfloat16: return f(__nv_bfloat16{});
    case Element::kHalf: return f(__half{});
  }
  return cudaErrorInvalidValue;
}

// Blocks of `threads` for `count` work items in a grid-stride loop: enough to fill the GPU a few
// times over, and no more.
inline unsigned BlocksFor(int64_t count, int threads) {
  constexpr int64_t kBlocksMax = 132 * 16;
  return static_cast<unsigned>(std::clamp<int64_t>((count + threads - 1) / threads, 1, kBlocksMax));
}

template <typename T>
__device__ inline T WarpSum(T value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

__device__ inline float WarpMax(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

// Reduces over a block of at most 1024 threads, a multiple of 32; all threads get the result.
// `scratch`: 32 values in shared memory, reusable at once.
template <typename T, typename Combine>
__device__ inline T BlockReduce(T value, T neutral, T* scratch, Combine warp_reduce) {
  value = warp_reduce(value);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = warp_reduce(lane < warps ? scratch[lane] : neutral);
  __syncthreads();
  return value;
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_DEVICE_MATH_CUH_
