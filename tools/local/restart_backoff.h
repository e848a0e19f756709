// The delay before a dead process is restarted. Pure.
#ifndef STARLING_TOOLS_LOCAL_RESTART_BACKOFF_H_
#define STARLING_TOOLS_LOCAL_RESTART_BACKOFF_H_

#include <algorithm>

#include "absl/time/time.h"

namespace starling::local {

// 0.25 s after the first death, doubled after each further one, at most 15 s. Resets for a process
// that ran for 30 s.
class RestartBackoff {
 public:
  absl::Duration OnDeath(absl::Duration lived) {
    if (lived >= kGoodLife) next_ = kFirst;
    const absl::Duration delay = next_;
    next_ = std::min(2 * next_, kMost);
    return delay;
  }

 private:
  static constexpr absl::Duration kFirst = absl::Milliseconds(250);
  static constexpr absl::Duration kMost = absl::Seconds(15);
  static constexpr absl::Duration kGoodLife = absl::Seconds(30);
  absl::Duration next_ = kFirst;
};

}  // namespace starling::local

#endif  // STARLING_TOOLS_LOCAL_RESTART_BACKOFF_H_
