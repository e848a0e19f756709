#include "worker/host/gradient_pool.h"

#include <utility>

#include "common/base/clock.h"
#include "spdlog/spdlog.h"

namespace starling {

GradientPool::GradientPool(const Layout& layout, Device* device) : device_(device) {
  MutexLock lock(&mutex_);
  slices_.resize(layout.slices.size());
  for (const Slice& slice : layout.slices) slices_[slice.id.value].elements = slice.elements;
}

GradientPool::~GradientPool() {
  MutexLock lock(&mutex_);
  for (OfSlice& slice : slices_) {
    for (float* data : slice.free) device_->FreeHost(data);
  }
}

std::shared_ptr<GradientBuffer> GradientPool::Acquire(const std::shared_ptr<GradientPool>& pool,
                                                      SliceId id, int most) {
  constexpr absl::Duration kSay = absl::Seconds(10);
  float* data = nullptr;
  uint32_t elements = 0;
  {
    MutexLock lock(&pool->mutex_);
    OfSlice& slice = pool->slices_[id.value];
    const absl::Time began = MonotonicNow();
    while (slice.loaned >= most && !pool->cancelled_) {
      if (pool->returned_.WaitWithDeadline(&pool->mutex_, MonotonicNow() + kSay)) {
        spdlog::warn("compute has waited {:.0f} s for an ack of slice {} ({} pushes are open)",
                     absl::ToDoubleSeconds(MonotonicNow() - began), id.value, slice.loaned);
      }
    }
    if (pool->cancelled_) return nullptr;
    ++slice.loaned;
    elements = slice.elements;
    if (!slice.free.empty()) {
      data = slice.free.back();
      slice.free.pop_back();
    }
  }
  if (data == nullptr) {
    const auto memory = pool->device_->AllocateHost(elements * sizeof(float));
    if (!memory.ok()) {
      spdlog::error("no memory for the gradient of slice {}: {}", id.value,
                    memory.status().ToString());
      MutexLock lock(&pool->mutex_);
      --pool->slices_[id.value].loaned;
      return nullptr;
    }
    data = static_cast<float*>(*memory);
  }
  std::shared_ptr<GradientBuffer> loan = pool->loans_.Get();
  *loan = {data, elements, id, 0, pool};
  return loan;
}

void GradientBuffer::Recycle() {
  const std::shared_ptr<GradientPool> of = std::move(pool);
  of->Return(slice, data);
}

void GradientPool::Return(SliceId slice, float* data) {
  MutexLock lock(&mutex_);
  slices_[slice.value].free.push_back(data);
  --slices_[slice.value].loaned;
  returned_.SignalAll();
}

void GradientPool::Cancel() {
  MutexLock lock(&mutex_);
  cancelled_ = true;
  returned_.SignalAll();
}

void GradientPool::Resume() {
  MutexLock lock(&mutex_);
  cancelled_ = false;
}

}  // namespace starling
