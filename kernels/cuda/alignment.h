// Scratch memory for NVIDIA's libraries, which require multiples of 256 bytes. Ours starts at
// multiples of 64.
#ifndef STARLING_KERNELS_CUDA_ALIGNMENT_H_
#define STARLING_KERNELS_CUDA_ALIGNMENT_H_

#include <cstddef>
#include <cstdint>

namespace starling::cuda {

inline constexpr size_t kScratchAlignment = 256;

// How much to request so that `bytes` remain behind AlignedScratch.
inline constexpr size_t ScratchBytes(size_t bytes) {
  return bytes == 0 ? 0 : bytes + kScratchAlignment - 1;
}

// Whether cuBLASLt may load and store 16 bytes at once there.
inline bool IsAlignedForProducts(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) % 16 == 0;
}

// The first aligned address in it.
inline void* AlignedScratch(void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return reinterpret_cast<void*>((address + kScratchAlignment - 1) & ~(kScratchAlignment - 1));
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_ALIGNMENT_H_
