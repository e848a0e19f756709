#include "worker/executor/parameter_memory.h"

#include <cstring>

#include "common/base/status_macros.h"

namespace starling {

ParameterMemory::~ParameterMemory() {
  if (host_ != nullptr && host_ != device()) owner_->FreeHost(host_);
}

absl::Status ParameterMemory::Allocate(Device* device, size_t bytes) {
  owner_ = device;
  MutexLock lock(&mutex_);
  STARLING_ASSIGN_OR_RETURN(stream_, device->CreateStream());
  STARLING_RETURN_IF_ERROR(memory_.Allocate(device, bytes, *stream_));
  STARLING_RETURN_IF_ERROR(stream_->Synchronize());
  if (device->host_reaches_memory()) {
    host_ = memory_.as<float>();
    return absl::OkStatus();
  }
  STARLING_ASSIGN_OR_RETURN(void* const host, device->AllocateHost(bytes));
  host_ = static_cast<float*>(host);
  std::memset(host, 0, bytes);
  return absl::OkStatus();
}

absl::Status ParameterMemory::Install(size_t begin, size_t elements, std::atomic<bool>* ready) {
  if (host_ != device()) {
    MutexLock lock(&mutex_);
    if (*ready) return absl::OkStatus();
    STARLING_RETURN_IF_ERROR(owner_->CopyToDevice(device() + begin, host_ + begin,
                                                  elements * sizeof(float), *stream_));
    STARLING_RETURN_IF_ERROR(stream_->Synchronize());
    ready->store(true, std::memory_order_release);
    return absl::OkStatus();
  }
  ready->store(true, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace starling
