#include "worker/executor/parameter_memory.h"

#include <cstring>

#include "common/base/status_macros.h"

namespace starling {

ParameterMemory::~ParameterMemory() {
  if (host_ != nullptr && copies()) owner_->FreeHost(host_);
}

absl::Status ParameterMemory::Allocate(Device* device, const Layout& layout, SpanRing* spans) {
  owner_ = device;
  const size_t bytes = layout.elements * sizeof(float);
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream());
  STARLING_RETURN_IF_ERROR(memory_.Allocate(device, bytes, *stream));
  STARLING_RETURN_IF_ERROR(stream->Synchronize());
  if (device->host_reaches_memory()) {
    host_ = memory_.as<float>();
    return absl::OkStatus();
  }
  STARLING_ASSIGN_OR_RETURN(void* const host, device->AllocateHost(bytes));
  host_ = static_cast<float*>(host);
  std::memset(host, 0, bytes);
  for (size_t s = 0; s < layout.slices.size(); ++s) {
    STARLING_ASSIGN_OR_RETURN(arrived_.emplace_back(), device->CreateEvent());
  }
  MutexLock lock(&mutex_);
  STARLING_ASSIGN_OR_RETURN(in_, CopyQueue::Create(device, spans));
  return absl::OkStatus();
}

void ParameterMemory::BeginUnit(Clock clock) {
  MutexLock lock(&mutex_);
  if (in_ != nullptr) in_->Begin(clock);
}

absl::Status ParameterMemory::EndUnit() {
  MutexLock lock(&mutex_);
  return in_ == nullptr ? absl::OkStatus() : in_->Drain();
}

absl::Status ParameterMemory::Install(const Slice& slice, std::atomic<bool>* ready, Stream& lane) {
  if (!copies()) {
    ready->store(true, std::memory_order_release);
    return absl::OkStatus();
  }
  Event& arrived = *arrived_[slice.id.value];
  {
    MutexLock lock(&mutex_);
    if (!*ready) {
      const CopyQueue::Block block = {device() + slice.flat_begin, host_ + slice.flat_begin,
                                      slice.elements * sizeof(float)};
      STARLING_RETURN_IF_ERROR(
          in_->In(absl::MakeConstSpan(&block, 1), nullptr, arrived, "copy in", slice.id));
      ready->store(true, std::memory_order_release);
    }
  }
  return lane.Wait(arrived);
}

}  // namespace starling
