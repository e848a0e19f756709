// Shared by kernels: elements as floats, 16 bytes at a time; sums over a warp and a block in a
// fixed order. For .cu files.
#ifndef STARLING_KERNELS_CUDA_DEVICE_MATH_CUH_
#define STARLING_KERNELS_CUDA_DEVICE_MATH_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

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

// Elements that one load or store moves: by default as many as 16 bytes hold.
template <typename T, int kElements = 16 / sizeof(T)>
struct alignas(kElements * sizeof(T)) Pack {
  static constexpr int kCount = kElements;
  T at[kCount];
};

// What one load or store moves, in words of 32 bits. Left to itself, nvcc moves elements of two
// bytes in pairs.
template <int kWords>
struct Words;
template <>
struct Words<1> {
  using Type = uint32_t;
};
template <>
struct Words<2> {
  using Type = uint2;
};
template <>
struct Words<4> {
  using Type = uint4;
};

// Packs of more than 16 bytes take several loads and stores.
template <int kElements, typename T>
__device__ Pack<T, kElements> LoadPack(const T* from) {
  using Packed = Pack<T, kElements>;
  Packed pack;
  if constexpr (sizeof(Packed) < sizeof(uint32_t)) {
    pack.at[0] = from[0];
  } else {
    constexpr int kWords = sizeof(Packed) / sizeof(uint32_t), kAtOnce = kWords < 4 ? kWords : 4;
    using Load = typename Words<kAtOnce>::Type;
    Load words[kWords / kAtOnce];
#pragma unroll
    for (int i = 0; i < kWords / kAtOnce; ++i) words[i] = reinterpret_cast<const Load*>(from)[i];
    memcpy(static_cast<void*>(&pack), words, sizeof(pack));
  }
  return pack;
}
template <int kElements, typename T>
__device__ void StorePack(T* to, const Pack<T, kElements>& pack) {
  using Packed = Pack<T, kElements>;
  if constexpr (sizeof(Packed) < sizeof(uint32_t)) {
    to[0] = pack.at[0];
  } else {
    constexpr int kWords = sizeof(Packed) / sizeof(uint32_t), kAtOnce = kWords < 4 ? kWords : 4;
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) == sizeof(uint32_t)) {
        memcpy(&words[i], &pack.at[i], sizeof(uint32_t));
      } else {
        uint16_t low, high;
        memcpy(&low, static_cast<const void*>(&pack.at[2 * i]), sizeof(low));
        memcpy(&high, static_cast<const void*>(&pack.at[2 * i + 1]), sizeof(high));
        words[i] = low | static_cast<uint32_t>(high) << 16;
      }
    }
    using Store = typename Words<kAtOnce>::Type;
#pragma unroll
    for (int i = 0; i < kWords / kAtOnce; ++i) {
      Store store;
      memcpy(&store, words + i * kAtOnce, sizeof(store));
      reinterpret_cast<Store*>(to)[i] = store;
    }
  }
}

inline bool AlignedTo(const void* data, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}
inline bool Aligned16(const void* data) { return AlignedTo(data, 16); }

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

// Calls f.operator()<kPack>() with the greatest kPack, kElements or 1, that divides `count` and to
// whose size all `data` are aligned; null pointers are.
template <typename T, int kElements = Pack<T>::kCount, typename F, typename... Data>
cudaError_t WithPack(int64_t count, F f, const Data*... data) {
  if (count % kElements == 0 && (AlignedTo(data, kElements * sizeof(T)) && ...)) {
    return f.template operator()<kElements>();
  }
  return f.template operator()<1>();
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
