#include "worker/runtime/slice_versions.h"

#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

namespace starling {

void SliceVersions::Set(SliceId slice, Clock version) {
  MutexLock lock(&mutex_);
  versions_[slice.value] = version;
  changed_.SignalAll();
}

void SliceVersions::Forget() {
  MutexLock lock(&mutex_);
  versions_.assign(versions_.size(), kNone);
}

bool SliceVersions::Wait(SliceId slice, Clock version) {
  constexpr absl::Duration kSay = absl::Seconds(10);
  MutexLock lock(&mutex_);
  const absl::Time began = absl::Now();
  while (!cancelled_ && versions_[slice.value] != version) {
    if (changed_.WaitWithDeadline(&mutex_, absl::Now() + kSay)) {
      spdlog::warn("compute has waited {:.0f} s for slice {} at clock {} (it has {})",
                   absl::ToDoubleSeconds(absl::Now() - began), slice.value, version,
                   versions_[slice.value]);
    }
  }
  return !cancelled_;
}

void SliceVersions::Cancel() {
  MutexLock lock(&mutex_);
  cancelled_ = true;
  changed_.SignalAll();
}

void SliceVersions::Resume() {
  MutexLock lock(&mutex_);
  cancelled_ = false;
}

}  // namespace starling
