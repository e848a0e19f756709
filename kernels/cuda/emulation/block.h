// Kernels on the CPU: a grid's blocks run one after the other, a block's threads as fibers of the
// thread that launches. A thread runs until it waits at a barrier or in a shuffle, then the first
// that may run in the launch's order goes on. So the first warp gets as far ahead of the others as
// barriers let it, and a barrier that is missing shows in one order or another: ascending,
// descending, or warps and lanes shuffled. Launches take turns; STARLING_EMULATION_ORDER, a number
// (0 ascending, 1 descending, else a seed), holds them all to one.
//
// What a kernel does wrong aborts the process, and says which kernel, block and thread: a barrier
// that not all threads reach, a shuffle that not all lanes of its warp take part in, memory outside
// an allocation. Any number of host threads may launch at once.
#ifndef STARLING_KERNELS_CUDA_EMULATION_BLOCK_H_
#define STARLING_KERNELS_CUDA_EMULATION_BLOCK_H_

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace starling::emulation {

inline constexpr size_t kSharedBytesMax = 48 << 10;  // of what a block declares

// threadIdx, blockIdx, blockDim, gridDim of the kernel's thread that runs.
struct Place {
  uint3 thread = {}, block = {};
  dim3 block_size, grid_size;
};
Place& Here();

// `body` once for each thread of each block. The configuration is a valid one.
void RunGrid(const char* kernel, dim3 grid, dim3 block, const std::function<void()>& body);

// For kernels. `file` and `line` tell places apart.
void Barrier(const char* file, int line);
uint64_t ShuffleXor(uint32_t mask, uint64_t value, int lane_mask, int line);
// The block's variable that is declared there: filled with 0xff when the block begins, and followed
// by memory that must not be touched.
void* SharedMemory(size_t bytes, const char* file, int line);

}  // namespace starling::emulation

#endif  // STARLING_KERNELS_CUDA_EMULATION_BLOCK_H_
