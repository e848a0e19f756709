#include "server/shard/host/action_memory.h"

#include <atomic>
#include <utility>

#include "common/defences.h"

namespace starling {
namespace {

// Also true if the last other holder, on another thread, has just released it. The fence puts its
// reads before our writes.
bool OnlyOurs(const std::shared_ptr<float>& data) {
  if (data.use_count() != 1 && !DefenceMasked(Defence::kValueInUse)) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

}  // namespace

std::shared_ptr<float> ActionMemory::Allocate(size_t elements,
                                              const std::shared_ptr<float>* reuse) {
  const auto take = [&] {
    return reuse != nullptr && OnlyOurs(*reuse) ? *reuse : memory_->Allocate(elements);
  };
  std::shared_ptr<float> memory = take();
  if (memory == nullptr && give_up_()) {
    gave_up_ = true;
    memory = take();
  }
  while (memory == nullptr && !gave_up_ &&
         memory_->CloseWorst(elements * sizeof(float), /*any=*/leads_())) {
    closed_streams_ = true;
    memory = take();
  }
  if (memory == nullptr) missing_ = elements;
  return memory;
}

bool ActionMemory::MayRetry(absl::Time now, bool patient) {
  if (deadline_ == absl::InfinitePast() && (gave_up_ || closed_streams_ || patient))
    deadline_ = now + ShardMemory::kClosedAfter;
  if (now >= deadline_) {
    if (!std::exchange(gave_up_, false)) return false;
    deadline_ = absl::InfinitePast();  // the next attempt may close streams
  }
  missing_ = 0;
  closed_streams_ = false;
  return true;
}

}  // namespace starling
