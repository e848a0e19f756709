// Counters of a daemon, as they grew of late.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_WINDOW_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_WINDOW_H_

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace starling::explain {

// What a worker counts while it serves a job. Counters of a link that was opened anew begin at 0.
struct WorkerCounters {
  StepTimes times;
  std::vector<LinkStatus> links;
};

// What `now` has more than `before`; the rest as in `now`.
WorkerCounters Since(const WorkerCounters& now, const WorkerCounters& before);
PartitionTimes Since(const PartitionTimes& now, const PartitionTimes& before);

// How much was done: windows are so wide that they hold several.
inline uint64_t UnitsOf(const WorkerCounters& counters) { return counters.times.units(); }
inline uint64_t UnitsOf(const PartitionTimes& times) { return times.pushes(); }

inline constexpr absl::Duration kWindowMin = absl::Seconds(15);  // half of the widest usual one
inline constexpr absl::Duration kWindowMax = absl::Minutes(30);  // the same, where steps are long
inline constexpr uint64_t kWindowUnits = 5;

// The last counters and two older ones: the window goes from the older of these to the last. It is
// kWindowMin to twice that wide, wider where less than kWindowUnits are done in that time, and
// begins and ends with the end of a unit, so that it holds whole ones. Constant memory. One thread
// at a time.
template <typename Counters>
class Window {
 public:
  // Where less is done than before, the daemon began anew, and so does the window. It does not hold
  // the first unit, which waits for the job to be made ready.
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

  // Zero, and nothing: no unit was done since the first counters, or none for so long that what was
  // before says nothing any more.
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

  std::optional<Snapshot> last_, middle_, base_;  // all or none
};

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_WINDOW_H_
