// Recent growth of a daemon's counters.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_WINDOW_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_WINDOW_H_

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace starling::explain {

// What a worker counts while it serves a job. The counters of a reopened link start at 0.
struct WorkerCounters {
  StepTimes times;
  std::vector<LinkStatus> links;
};

// The counters of `now` less those of `before`; all else as in `now`.
WorkerCounters Since(const WorkerCounters& now, const WorkerCounters& before);
PartitionTimes Since(const PartitionTimes& now, const PartitionTimes& before);

// The amount of work. A window is wide enough to hold several units.
inline uint64_t UnitsOf(const WorkerCounters& counters) { return counters.times.units(); }
inline uint64_t UnitsOf(const PartitionTimes& times) { return times.pushes(); }

inline constexpr absl::Duration kWindowMin = absl::Seconds(15);  // half of the usual maximum
inline constexpr absl::Duration kWindowMax = absl::Minutes(30);  // the same for long steps
inline constexpr uint64_t kWindowUnits = 5;

// Keeps the last counters and two older ones; the window spans from the oldest to the last. It is
// one to two times kWindowMin wide, wider if fewer than kWindowUnits units are done in that time.
// It starts and ends with the end of a unit, so it holds whole units. Constant memory. Not
// thread-safe.
template <typename Counters>
class Window {
 public:
  // If less is done than before, the daemon has restarted, and the window restarts, too. The window
  // excludes the first unit, which includes preparing the job.
  void Take(Counters counters, absl::Time now) {
    if (UnitsOf(counters) == 0) return Clear();
    if (!last_ || UnitsOf(counters) < UnitsOf(last_->counters)) {
      last_ = middle_ = base_ = Snapshot{std::move(counters), now};
      return;
    }
    if (UnitsOf(counters) == UnitsOf(last_->counters)) return;
    last_ = Snapshot{std::move(counters), now};
    const absl::Duration age = now - middle_->time;
    const uint64_t units = UnitsOf(last_->counters) - UnitsOf(middle_->counters);
    if (age < kWindowMin || (units < kWindowUnits && age < kWindowMax)) return;
    base_ = std::move(middle_);
    middle_ = last_;
  }

  void Clear() { last_ = middle_ = base_ = std::nullopt; }

  // Zero and empty if no unit was done since the first counters, or if the last one is so old that
  // the window is stale.
  absl::Duration Span(absl::Time now) const {
    return Fresh(now) ? last_->time - base_->time : absl::ZeroDuration();
  }
  Counters Growth(absl::Time now) const {
    return Fresh(now) ? Since(last_->counters, base_->counters) : Counters();
  }

 private:
  struct Snapshot {
    Counters counters;
    absl::Time time;
  };
  bool Fresh(absl::Time now) const {
    return last_ && now - last_->time <= std::max(2 * kWindowMin, last_->time - base_->time);
  }

  std::optional<Snapshot> last_, middle_, base_;  // all set or none
};

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_WINDOW_H_
