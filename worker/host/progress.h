// Tracks the computing thread's progress, by which the coordinator recognizes a hung worker.
#ifndef STARLING_WORKER_HOST_PROGRESS_H_
#define STARLING_WORKER_HOST_PROGRESS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/sync/mutex.h"
#include "common/trace/span_ring.h"
#include "proto/coordinator.pb.h"

namespace starling {

// Thread-safe. Some lanes of a unit may wait while others progress. As long as a lane waits for
// values or acknowledgements, the worker counts as waiting, since other processes have to progress
// first.
class Progress {
 public:
  // `now_us` is monotonic, not wall time.
  explicit Progress(std::function<uint64_t()> now_us = SpanRing::NowMicros)
      : now_us_(std::move(now_us)), moved_us_(now_us_()) {}

  // A job is being prepared, or served, or there is none. The time of a unit is measured separately
  // for each job.
  void BecomePreparing() { Become(Activity::PREPARING); }
  void BecomeServing() { Become(Activity::WAITING); }
  void BecomeIdle() { Become(Activity::IDLE); }

  void BeginUnit() {
    MutexLock lock(&mutex_);
    ++units_;
    began_us_ = moved_us_ = now_us_();
  }
  // `waited`: seconds in which the unit waited for others. Negative: the unit's time is not
  // representative.
  void EndUnit(double waited) {
    MutexLock lock(&mutex_);
    --units_;
    moved_us_ = now_us_();
    if (waited < 0 || kind_ == Activity::PREPARING) return;  // PREPARING: of the job before
    constexpr double kWeight = 0.1;
    const double took = std::max(Seconds(moved_us_ - began_us_) - waited, 0.0);
    unit_seconds_ = std::max(took, unit_seconds_ + kWeight * (took - unit_seconds_));
  }

  // A batch was read, some operators were computed, or a gradient is complete.
  void Moved() {
    MutexLock lock(&mutex_);
    moved_us_ = now_us_();
  }
  void BeginWait() {
    MutexLock lock(&mutex_);
    ++waiting_;
  }
  void EndWait() {
    MutexLock lock(&mutex_);
    --waiting_;
    moved_us_ = now_us_();
  }

  Activity Now() const {
    MutexLock lock(&mutex_);
    Activity activity;
    activity.set_kind(units_ == 0 ? kind_ : waiting_ > 0 ? Activity::WAITING : Activity::COMPUTING);
    activity.set_seconds(Seconds(now_us_() - moved_us_));
    activity.set_unit_seconds(unit_seconds_);
    return activity;
  }

 private:
  static double Seconds(uint64_t us) { return static_cast<double>(us) / 1e6; }
  // A unit of the previous job may still run, and is reported first.
  void Become(Activity::Kind kind) {
    MutexLock lock(&mutex_);
    kind_ = kind;
    if (kind == Activity::PREPARING) unit_seconds_ = 0;
    if (units_ == 0) moved_us_ = now_us_();
  }

  const std::function<uint64_t()> now_us_;
  mutable Mutex mutex_;
  Activity::Kind kind_ ABSL_GUARDED_BY(mutex_) = Activity::IDLE;
  int units_ ABSL_GUARDED_BY(mutex_) = 0;    // units that were started and have not stopped
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // lanes
  uint64_t began_us_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t moved_us_ ABSL_GUARDED_BY(mutex_);
  double unit_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_PROGRESS_H_
