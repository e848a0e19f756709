#include "worker/executor/replay.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"

namespace starling {

absl::StatusOr<ReplayedCompute> ParseReplayedCompute(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  ReplayedCompute compute;
  const bool good = parts.size() == 2 && absl::ParseDuration(parts[0], &compute.forward) &&
                    absl::ParseDuration(parts[1], &compute.backward) &&
                    compute.forward >= absl::ZeroDuration() &&
                    compute.backward >= absl::ZeroDuration() && compute.forward <= absl::Hours(1) &&
                    compute.backward <= absl::Hours(1);
  if (good) return compute;
  return absl::InvalidArgumentError(absl::StrCat(
      "expected the time of forward and of backward, at most 1h each, as 0.02s,0.04s, got \"", text,
      "\""));
}

bool ReplayWait::For(absl::Duration time, absl::FunctionRef<bool()> stopped) {
  constexpr absl::Duration kLook = absl::Milliseconds(20);
  const absl::Duration caught_up = std::min(time, late_);
  late_ -= caught_up;
  const absl::Time until = MonotonicNow() + (time - caught_up);
  for (absl::Time now = MonotonicNow(); now < until; now = MonotonicNow()) {
    absl::SleepFor(std::min(kLook, until - now));
    if (stopped()) return false;
  }
  late_ += MonotonicNow() - until;
  return !stopped();
}

}  // namespace starling
