#include "common/admin/health.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace starling::admin {

void Health::Watch(EventLoop* loop, const std::string& name) {
  {
    MutexLock lock(&beats_->mutex);
    beats_->last[name] = MonotonicNow();
  }
  loop->Post([loop, name, beats = beats_] { Beat(loop, name, beats); });
}

// Runs on the loop, so `loop` is alive.
void Health::Beat(EventLoop* loop, const std::string& name, const std::shared_ptr<Beats>& beats) {
  {
    MutexLock lock(&beats->mutex);
    beats->last[name] = MonotonicNow();
  }
  loop->PostAfter(kBeatPeriod, [loop, name, beats] { Beat(loop, name, beats); });
}

std::string Health::WhyNot(absl::Time now) const {
  MutexLock lock(&beats_->mutex);
  for (const auto& [name, last] : beats_->last) {
    if (now - last <= kSilenceMax) continue;
    return absl::StrCat("the thread \"", name, "\" has not answered for ",
                        absl::FormatDuration(absl::Trunc(now - last, absl::Milliseconds(100))));
  }
  return "";
}

}  // namespace starling::admin
