// Timing of work on a GPU. Private to cudnn.cc.
#ifndef STARLING_KERNELS_CUDA_STOPWATCH_H_
#define STARLING_KERNELS_CUDA_STOPWATCH_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"

namespace starling::cuda {

// A block of GPU memory, zeroed, for as long as plans are timed.
class Scratch {
 public:
  static absl::StatusOr<std::unique_ptr<Scratch>> Allocate(size_t bytes, CudaStream& stream) {
    auto scratch = std::make_unique<Scratch>();
    STARLING_RETURN_IF_CUDA_ERROR(cudaMalloc(&scratch->memory_, std::max<size_t>(bytes, 1)));
    STARLING_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(scratch->memory_, 0, bytes, stream.get()));
    return scratch;
  }
  Scratch() = default;
  ~Scratch() { static_cast<void>(cudaFree(memory_)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* at(size_t offset) const { return static_cast<char*>(memory_) + offset; }

 private:
  void* memory_ = nullptr;
};

// Two points in a stream, and the time between them.
class Stopwatch {
 public:
  static absl::StatusOr<std::unique_ptr<Stopwatch>> Create() {
    auto watch = std::make_unique<Stopwatch>();
    STARLING_RETURN_IF_CUDA_ERROR(cudaEventCreate(&watch->begin_));
    STARLING_RETURN_IF_CUDA_ERROR(cudaEventCreate(&watch->end_));
    return watch;
  }
  Stopwatch() = default;
  ~Stopwatch() {
    for (cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  absl::Status Begin(CudaStream& stream) {
    return STARLING_CUDA_STATUS(cudaEventRecord(begin_, stream.get()));
  }
  // Waits for the stream. In milliseconds.
  absl::StatusOr<float> End(CudaStream& stream) {
    float milliseconds = 0;
    STARLING_RETURN_IF_CUDA_ERROR(cudaEventRecord(end_, stream.get()));
    STARLING_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(end_));
    STARLING_RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// While it lives, this thread may allocate and wait for memory while another thread captures a
// stream; neither disturbs the other.
class BesideCaptures {
 public:
  BesideCaptures() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~BesideCaptures() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // afterwards, the previous mode
};

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_STOPWATCH_H_
