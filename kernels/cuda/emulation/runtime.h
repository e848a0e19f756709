// CUDA on the CPU, for tests only: runs the backend's own kernels and host code (kernels/cuda), so
// that their indices, barriers, workspace sizes, alignments and formats are tested without a GPU.
//
//   kernels     compiled by g++ (rewrite.py, device_code.h), threads are fibers (block.h);
//               misaligned access, out-of-bounds indices and integer overflow trap
//   memory      each allocation, 64-byte aligned like the executor's pieces, ends within 127 bytes
//               of a page that must not be touched, and is filled with NaN; what was written into
//               those bytes is detected when it is freed. Copies and fills check that their ranges
//               lie within one allocation.
//   streams     run ordered work at once; during a capture, work is kept for the graph
//   cuBLASLt    cublaslt.cc, opened by its name like NVIDIA's; checks shapes, types, alignments and
//               workspace
//   cuDNN       cudnn.cc, replaces kernels/cuda/cudnn.h: plain convolutions and attention
//
// What it cannot show: speed; errors of work that really runs asynchronously or concurrently
// (kernels/testing/fake_discrete_device.h shows some of them); how blocks see each other's memory;
// the host touching device memory; tensor cores, fused multiply-add and the GPU's exp and tanh, so
// the last bits; and what NVIDIA's libraries really accept: this only knows what their headers say.
#ifndef STARLING_KERNELS_CUDA_EMULATION_RUNTIME_H_
#define STARLING_KERNELS_CUDA_EMULATION_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

// A stream, for what orders work: kernels, copies, libraries. Used by one thread at a time.
struct CUstream_st {
  virtual ~CUstream_st() = default;
  // Runs `work`, or keeps it for the graph during a capture.
  virtual cudaError_t Order(std::function<void()> work) = 0;
};

namespace starling::emulation {

// Orders a kernel, or returns why it cannot run, as cudaGetLastError does.
void OrderLaunch(const char* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                 std::function<void()> body);

}  // namespace starling::emulation

#endif  // STARLING_KERNELS_CUDA_EMULATION_RUNTIME_H_
