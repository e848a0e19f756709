// A GPU stream, and what kernels report to the host through it.
#ifndef STARLING_KERNELS_CUDA_STREAM_H_
#define STARLING_KERNELS_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace starling::cuda {

// Where a kernel reports an index outside its table: a word of pinned host memory. Shared by the
// operator, whose kernel writes it, and the streams that it runs on, which read it.
class IndexWatch {
 public:
  // For the operator `name` (`op`), whose table has `rows` rows and whose samples have `sample`
  // positions.
  static absl::StatusOr<std::shared_ptr<IndexWatch>> Create(const std::string& name,
                                                            const std::string& op, int64_t rows,
                                                            int64_t sample);
  ~IndexWatch();
  IndexWatch(const IndexWatch&) = delete;
  IndexWatch& operator=(const IndexWatch&) = delete;

  // For the kernel: 0, or (position + 1) << 32 | index.
  uint64_t* word() const { return word_; }
  // Returns kOutOfRange if an index was reported since the last call. Call it when the stream is
  // idle.
  absl::Status Take();

 private:
  IndexWatch(std::string name, std::string op, int64_t rows, int64_t sample, uint64_t* word);

  const std::string name_, op_;
  const int64_t rows_, sample_;
  uint64_t* const word_;
};

class CudaEvent : public Event {
 public:
  // `timed`: Device::CreateTimedEvent.
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Create(bool timed);
  ~CudaEvent() override;

  absl::Status Synchronize() override;

  cudaEvent_t get() const { return event_; }

 private:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}

  const cudaEvent_t event_;
};

// A CUDA graph, ready to be launched.
class CudaGraph : public Captured {
 public:
  explicit CudaGraph(cudaGraphExec_t graph) : graph_(graph) {}
  ~CudaGraph() override;

  cudaGraphExec_t get() const { return graph_; }

 private:
  const cudaGraphExec_t graph_;
};

class CudaStream : public Stream {
 public:
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create();
  ~CudaStream() override;

  absl::Status Record(Event& event) override;
  absl::Status Wait(Event& event) override;
  // kOutOfRange: a kernel met an index outside its table. kUnavailable: the GPU is lost.
  absl::Status Synchronize() override;
  // Restricts only the calling thread's other calls; other threads may allocate, wait and copy.
  absl::Status BeginCapture() override;
  absl::StatusOr<std::unique_ptr<Captured>> EndCapture() override;
  absl::Status Launch(Captured& captured) override;

  cudaStream_t get() const { return stream_; }
  // From here on, Synchronize checks `watch`.
  void Watch(const std::shared_ptr<IndexWatch>& watch);
  // cudnn.cc's: the library's handle for this stream, destroyed with it.
  std::shared_ptr<void>& cudnn_handle() { return cudnn_handle_; }

 private:
  explicit CudaStream(cudaStream_t stream) : stream_(stream) {}

  const cudaStream_t stream_;
  std::vector<std::shared_ptr<IndexWatch>> watches_;
  std::shared_ptr<void> cudnn_handle_;
};

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_STREAM_H_
