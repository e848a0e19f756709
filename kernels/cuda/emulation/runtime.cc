#include "kernels/cuda/emulation/runtime.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/emulation/block.h"

namespace starling::emulation {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 64;
constexpr size_t kTotalBytes = size_t{4} << 30;

thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

cudaError_t Said(cudaError_t error, const char* why = "") {
  if (error == cudaSuccess) return error;
  if (*why != '\0') std::fprintf(stderr, "emulated CUDA: %s\n", why);
  return last_error = error;
}

// ---- Memory ------------------------------------------------------------------------------------

struct Allocation {
  size_t bytes = 0;
  bool device = false;
  char* mapping = nullptr;
  size_t mapping_bytes = 0;
};

class Memory {
 public:
  cudaError_t Allocate(void** memory, size_t bytes, bool device) {
    const size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    std::lock_guard lock(mutex_);
    // Where sizes alone would align each block to 256 bytes, only every other one is.
    const size_t shift = padded % 256 == 0 && (shifts_ = !shifts_) ? kAlignment : 0;
    const size_t pages = (padded + shift + kPage - 1) / kPage * kPage;
    if (device && used_ + padded > kTotalBytes) return cudaErrorMemoryAllocation;
    void* const mapping = mmap(nullptr, pages + 2 * kPage, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return cudaErrorMemoryAllocation;
    char* const base = static_cast<char*>(mapping);
    mprotect(base, kPage, PROT_NONE);
    mprotect(base + kPage + pages, kPage, PROT_NONE);
    std::memset(base + kPage, 0xff, pages);
    char* const begin = base + kPage + pages - padded - shift;
    if (device) used_ += padded;
    allocations_[begin] = {bytes, device, base, pages + 2 * kPage};
    *memory = begin;
    return cudaSuccess;
  }

  cudaError_t Free(void* memory, bool device) {
    if (memory == nullptr) return cudaSuccess;
    std::lock_guard lock(mutex_);
    const auto found = allocations_.find(static_cast<char*>(memory));
    if (found == allocations_.end() || found->second.device != device) {
      return Said(cudaErrorInvalidValue, "freed what is not allocated");
    }
    const Allocation& a = found->second;
    CheckUntouched(a.mapping + kPage, found->first);
    CheckUntouched(found->first + a.bytes, a.mapping + a.mapping_bytes - kPage);
    if (device) used_ -= (a.bytes + kAlignment - 1) / kAlignment * kAlignment;
    munmap(a.mapping, a.mapping_bytes);
    allocations_.erase(found);
    return cudaSuccess;
  }

  // Whether [data, data + bytes) is in one allocation on the device, or in no known allocation.
  bool Is(bool device, const void* data, size_t bytes) {
    std::lock_guard lock(mutex_);
    const char* const begin = static_cast<const char*>(data);
    auto next = allocations_.upper_bound(const_cast<char*>(begin));
    if (next == allocations_.begin()) return !device;
    const auto& [at, allocation] = *--next;
    if (begin >= at + allocation.bytes) return !device;
    return allocation.device == device && begin + bytes <= at + allocation.bytes;
  }

  size_t available() {
    std::lock_guard lock(mutex_);
    return kTotalBytes - used_;
  }

 private:
  static void CheckUntouched(const char* begin, const char* end) {
    for (; begin != end; ++begin) {
      if (static_cast<uint8_t>(*begin) == 0xff) continue;
      std::fprintf(stderr, "emulated CUDA: something wrote at %p, outside of an allocation\n",
                   static_cast<const void*>(begin));
      std::abort();
    }
  }

  std::mutex mutex_;
  std::map<char*, Allocation> allocations_;
  size_t used_ = 0;
  bool shifts_ = false;
};

Memory& TheMemory() {
  static auto* const memory = new Memory();
  return *memory;
}

// ---- Streams and graphs ------------------------------------------------------------------------

using Work = std::vector<std::function<void()>>;

struct Capture {
  Work work;
  bool over = false, broken = false;
  CUstream_st* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};

std::atomic<int> global_captures = 0;
thread_local int local_captures = 0;

class EmulatedStream : public CUstream_st {
 public:
  cudaError_t Order(std::function<void()> work) override {
    if (capturing()) {
      capture->work.push_back(std::move(work));
    } else {
      work();
    }
    return cudaSuccess;
  }
  bool capturing() const { return capture != nullptr && !capture->over; }

  std::shared_ptr<Capture> capture;
};

EmulatedStream* Of(cudaStream_t stream) { return static_cast<EmulatedStream*>(stream); }

cudaError_t Order(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) {
    return Said(cudaErrorInvalidResourceHandle, "the default stream, which waits for no other");
  }
  return stream->Order(std::move(work));
}

// For calls that captures forbid: an error if this thread would disturb one that is under way.
cudaError_t Unsafe() {
  const bool own = local_captures > 0 && capture_mode != cudaStreamCaptureModeRelaxed;
  const bool disturbs = own || (global_captures > 0 && capture_mode == cudaStreamCaptureModeGlobal);
  return disturbs ? Said(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

}  // namespace

void OrderLaunch(const char* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                 std::function<void()> body) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || shared > kSharedBytesMax) {
    Said(cudaErrorInvalidConfiguration, kernel);
    return;
  }
  static_cast<void>(Order(stream, [=] { RunGrid(kernel, grid, block, body); }));
}

}  // namespace starling::emulation

using starling::emulation::Capture;
using starling::emulation::EmulatedStream;
using starling::emulation::Of;
using starling::emulation::Order;
using starling::emulation::Said;
using starling::emulation::TheMemory;
using starling::emulation::Unsafe;
using starling::emulation::Work;

struct CUevent_st {
  unsigned flags = 0;
  std::shared_ptr<Capture> capture;  // into which it was recorded
  std::optional<std::chrono::steady_clock::time_point> passed;
};
struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  Work work;
};

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaGetLastError() {
  return std::exchange(starling::emulation::last_error, cudaSuccess);
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidMemcpyDirection: return "cudaErrorInvalidMemcpyDirection";
    case cudaErrorInvalidPitchValue: return "cudaErrorInvalidPitchValue";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    default: return "another error";
  }
}
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t error = Unsafe(); error != cudaSuccess) return error;
  return Said(TheMemory().Allocate(memory, bytes, /*device=*/true));
}
cudaError_t cudaFree(void* memory) {
  if (const cudaError_t error = Unsafe(); error != cudaSuccess) return error;
  return TheMemory().Free(memory, /*device=*/true);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (const cudaError_t error = Unsafe(); error != cudaSuccess) return error;
  return Said(TheMemory().Allocate(memory, bytes, /*device=*/false));
}
cudaError_t cudaFreeHost(void* memory) {
  if (const cudaError_t error = Unsafe(); error != cudaSuccess) return error;
  return TheMemory().Free(memory, /*device=*/false);
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *total = starling::emulation::kTotalBytes;
  *available = TheMemory().available();
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return Said(cudaErrorInvalidPitchValue, "a copy");
  const auto extent = [&](size_t pitch) { return height == 0 ? 0 : (height - 1) * pitch + width; };
  const bool to_device = kind != cudaMemcpyDeviceToHost;
  const bool from_device = kind != cudaMemcpyHostToDevice;
  if (!TheMemory().Is(to_device, to, extent(to_pitch)) ||
      !TheMemory().Is(from_device, from, extent(from_pitch))) {
    return Said(cudaErrorInvalidValue, "a copy from or to where the kind says it cannot be");
  }
  return Order(stream, [=] {
    for (size_t i = 0; i < height; ++i) {
      std::memcpy(static_cast<char*>(to) + i * to_pitch,
                  static_cast<const char*>(from) + i * from_pitch, width);
    }
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (!TheMemory().Is(/*device=*/true, to, bytes)) {
    return Said(cudaErrorInvalidValue, "a fill of what is no device memory");
  }
  return Order(stream, [=] { std::memset(to, value, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new EmulatedStream();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!Of(stream)->capturing()) return cudaSuccess;
  Of(stream)->capture->broken = true;
  return Said(cudaErrorStreamCaptureUnsupported);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->capture != nullptr && !event->capture->over) Of(stream)->capture = event->capture;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st();
  (*event)->flags = flags;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->capture = Of(stream)->capturing() ? Of(stream)->capture : nullptr;
  event->passed = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  for (const cudaEvent_t event : {from, to}) {
    const bool timed = (event->flags & cudaEventDisableTiming) == 0;
    if (!timed || !event->passed.has_value()) return Said(cudaErrorInvalidResourceHandle);
    if (event->capture != nullptr) return Said(cudaErrorCapturedEvent);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(*to->passed - *from->passed).count();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return event->capture == nullptr ? cudaSuccess : Said(cudaErrorCapturedEvent);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, starling::emulation::capture_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (Of(stream)->capturing()) return Said(cudaErrorIllegalState);
  Of(stream)->capture = std::make_shared<Capture>();
  Of(stream)->capture->origin = stream;
  Of(stream)->capture->mode = mode;
  if (mode == cudaStreamCaptureModeGlobal) ++starling::emulation::global_captures;
  if (mode != cudaStreamCaptureModeRelaxed) ++starling::emulation::local_captures;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = Of(stream)->capturing() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!Of(stream)->capturing()) return Said(cudaErrorIllegalState);
  Capture& capture = *Of(stream)->capture;
  if (capture.origin != stream) return Said(cudaErrorStreamCaptureUnmatched);
  if (capture.mode == cudaStreamCaptureModeGlobal) --starling::emulation::global_captures;
  if (capture.mode != cudaStreamCaptureModeRelaxed) --starling::emulation::local_captures;
  capture.over = true;
  if (capture.broken) return Said(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(capture.work)};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return Order(stream, [executable] {
    for (const std::function<void()>& work : executable->work) work();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
}
