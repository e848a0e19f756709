#include "kernels/cuda/stream.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/status.h"

namespace starling::cuda {

IndexWatch::IndexWatch(std::string name, std::string op, int64_t rows, int64_t sample,
                       uint64_t* word)
    : name_(std::move(name)), op_(std::move(op)), rows_(rows), sample_(sample), word_(word) {}

absl::StatusOr<std::shared_ptr<IndexWatch>> IndexWatch::Create(const std::string& name,
                                                               const std::string& op, int64_t rows,
                                                               int64_t sample) {
  void* word = nullptr;
  STARLING_RETURN_IF_CUDA_ERROR(cudaHostAlloc(&word, sizeof(uint64_t), cudaHostAllocMapped));
  *static_cast<uint64_t*>(word) = 0;
  return std::shared_ptr<IndexWatch>(
      new IndexWatch(name, op, rows, sample, static_cast<uint64_t*>(word)));
}

IndexWatch::~IndexWatch() { static_cast<void>(cudaFreeHost(word_)); }

absl::Status IndexWatch::Take() {
  const uint64_t met = *word_;
  if (met == 0) return absl::OkStatus();
  *word_ = 0;
  const int64_t position = static_cast<int64_t>(met >> 32) - 1;
  const auto index = static_cast<int32_t>(static_cast<uint32_t>(met));
  return absl::OutOfRangeError(absl::StrCat(
      "operator '", name_, "' (", op_, "): position ", position % sample_, " of sample ",
      position / sample_, " in its micro-batch holds ", index, ", expected 0 to ", rows_ - 1,
      " (the table's rows): use data of this vocabulary, or a larger table"));
}

// A waiting thread sleeps.
absl::StatusOr<std::unique_ptr<CudaEvent>> CudaEvent::Create(bool timed) {
  cudaEvent_t event = nullptr;
  const unsigned flags = cudaEventBlockingSync | (timed ? 0u : cudaEventDisableTiming);
  STARLING_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, flags));
  return absl::WrapUnique(new CudaEvent(event));
}

CudaEvent::~CudaEvent() { static_cast<void>(cudaEventDestroy(event_)); }

absl::Status CudaEvent::Synchronize() { return STARLING_CUDA_STATUS(cudaEventSynchronize(event_)); }

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create() {
  cudaStream_t stream = nullptr;
  STARLING_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return absl::WrapUnique(new CudaStream(stream));
}

// Errors here cannot be handled.
CudaStream::~CudaStream() {
  static_cast<void>(cudaStreamSynchronize(stream_));
  cudnn_handle_.reset();
  static_cast<void>(cudaStreamDestroy(stream_));
}

absl::Status CudaStream::Record(Event& event) {
  return STARLING_CUDA_STATUS(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_));
}

absl::Status CudaStream::Wait(Event& event) {
  return STARLING_CUDA_STATUS(
      cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).get(), cudaEventWaitDefault));
}

// Always reads all watches, so that each index error is reported once, for the work that caused it.
absl::Status CudaStream::Synchronize() {
  absl::Status first = CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  for (const std::shared_ptr<IndexWatch>& watch : watches_) first.Update(watch->Take());
  return first;
}

// Errors here cannot be handled.
CudaGraph::~CudaGraph() { static_cast<void>(cudaGraphExecDestroy(graph_)); }

absl::Status CudaStream::BeginCapture() {
  return STARLING_CUDA_STATUS(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
}

absl::StatusOr<std::unique_ptr<Captured>> CudaStream::EndCapture() {
  cudaGraph_t captured = nullptr;
  // Fails if a call has invalidated the capture; either way the stream stops capturing.
  STARLING_RETURN_IF_CUDA_ERROR(cudaStreamEndCapture(stream_, &captured));
  const auto destroy = [](cudaGraph_t graph) { static_cast<void>(cudaGraphDestroy(graph)); };
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, decltype(destroy)> graph(captured,
                                                                                     destroy);
  cudaGraphExec_t ready = nullptr;
  STARLING_RETURN_IF_CUDA_ERROR(cudaGraphInstantiate(&ready, captured, 0));
  auto launchable = std::make_unique<CudaGraph>(ready);
  // Otherwise the first launch would take longer, and would be the one to run out of memory.
  STARLING_RETURN_IF_CUDA_ERROR(cudaGraphUpload(ready, stream_));
  return launchable;
}

absl::Status CudaStream::Launch(Captured& captured) {
  return STARLING_CUDA_STATUS(cudaGraphLaunch(static_cast<CudaGraph&>(captured).get(), stream_));
}

void CudaStream::Watch(const std::shared_ptr<IndexWatch>& watch) {
  if (std::find(watches_.begin(), watches_.end(), watch) == watches_.end()) {
    watches_.push_back(watch);
  }
}

}  // namespace starling::cuda
