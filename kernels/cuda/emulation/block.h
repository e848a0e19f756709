// Kernels on the CPU: a grid's blocks run one after the other, a block's threads as fibers of the
// launching thread. A thread runs until it waits at a barrier or in a shuffle; then the first
// runnable one in the launch's order continues. So the first warp gets as far ahead of the others
// as barriers let it, and a missing barrier shows in one order or another: ascending, descending,
// or warps and lanes shuffled. Successive launches use different orders; STARLING_EMULATION_ORDER,
// a number (0 ascending, 1 descending, else a seed), fixes one for all.
//
// A kernel's error aborts the process and names the kernel, block and thread: a barrier that not
// all threads reach, a shuffle in which not all lanes of a warp take part, an access outside an
// allocation. Any number of host threads may launch concurrently.
#ifndef STARLING_KERNELS_CUDA_EMULATION_BLOCK_H_
#define STARLING_KERNELS_CUDA_EMULATION_BLOCK_H_

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace starling::emulation {

inline constexpr size_t kSharedBytesMax = 48 << 10;  // limit for a block's declared variables

// threadIdx, blockIdx, blockDim, gridDim of the kernel's thread that runs.
struct Place {
  uint3 thread = {}, block = {};
  dim3 block_size, grid_size;
};
Place& Here();

// Runs `body` once for each thread of each block. The configuration must be valid.
void RunGrid(const char* kernel, dim3 grid, dim3 block, const std::function<void()>& body);

// For kernels. `file` and `line` tell call sites apart.
void Barrier(const char* file, int line);
uint64_t ShuffleXor(uint32_t mask, uint64_t value, int lane_mask, int line);
// The block's variable declared at that call site: filled with 0xff when the block starts, and
// followed by a guard that must not be touched.
void* SharedMemory(size_t bytes, const char* file, int line);

}  // namespace starling::emulation

#endif  // STARLING_KERNELS_CUDA_EMULATION_BLOCK_H_
