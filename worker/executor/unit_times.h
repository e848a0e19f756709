// Where the time of training units goes. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_UNIT_TIMES_H_
#define STARLING_WORKER_EXECUTOR_UNIT_TIMES_H_

#include <cstdint>
#include <vector>

#include "common/sync/mutex.h"
#include "worker/executor/executor.h"
#include "worker/executor/lane_times.h"

namespace starling {

// Thread-safe. Times are microseconds of one monotonic clock.
class UnitTimes {
 public:
  explicit UnitTimes(int lanes) : lanes_(lanes) {}

  // Each is written by its lane.
  LaneTimes& lane(int lane) { return lanes_[lane]; }

  void Begin(uint64_t now_us);
  void End(uint64_t now_us);

  ExecutorTimes Read(uint64_t now_us) const;

 private:
  std::vector<LaneTimes> lanes_;
  mutable Mutex mutex_;
  uint64_t ended_us_ ABSL_GUARDED_BY(mutex_) = 0;  // of completed units
  uint64_t begin_us_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: none under way
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_UNIT_TIMES_H_
