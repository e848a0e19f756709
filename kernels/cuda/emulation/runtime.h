// CUDA on the CPU, for tests alone: the backend's own kernels and host code (kernels/cuda) run on
// it, so that its indices, barriers, sizes of workspaces, alignments and formats are judged where
// there is no GPU.
//
//   kernels     compiled by g++ (rewrite.py, device_code.h), their threads fibers (block.h); misaligned
//               access, indices outside of arrays and overflow of integers trap
//   memory      each allocation, 64 bytes aligned as the executor's pieces are, ends within 127 bytes of a
//               page that must not be touched, and is full of NaN; what was written into those
//               bytes shows
//               when it is freed. Copies and fills check that their ranges lie inside of one
//               allocation.
//   streams     run at once what is ordered; while one is captured, its work is kept, for the graph
//   cuBLASLt    cublaslt.cc, opened by its name like NVIDIA's; checks shapes, types, alignments, workspace
//   cuDNN       cudnn.cc, at kernels/cuda/cudnn.h: convolutions and attention, computed plainly
//
// What it cannot show: speed; what only work that really runs behind the host or beside other work
// does wrong (kernels/testing/fake_discrete_device.h shows some of it); how blocks see each other's memory;
// the host touching device memory; tensor cores, fused multiply-add and the GPU's exp and tanh, so
// the last bits; and what NVIDIA's libraries, of which this knows what their headers say, really
// take.
#ifndef STARLING_KERNELS_CUDA_EMULATION_RUNTIME_H_
#define STARLING_KERNELS_CUDA_EMULATION_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

// A stream, for what orders work: kernels, copies, libraries. Used by one thread at a time.
struct CUstream_st {
  virtual ~CUstream_st() = default;
  // Runs `work`, or keeps it for the graph that is captured.
  virtual cudaError_t Order(std::function<void()> work) = 0;
};

namespace starling::emulation {

// Orders a kernel, or says why it cannot run, as cudaGetLastError does.
void OrderLaunch(const char* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                 std::function<void()> body);

}  // namespace starling::emulation

#endif  // STARLING_KERNELS_CUDA_EMULATION_RUNTIME_H_
