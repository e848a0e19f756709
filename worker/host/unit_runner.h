// What computes units for the host. Implemented by compute_thread.h, and by the simulator.
#ifndef STARLING_WORKER_HOST_UNIT_RUNNER_H_
#define STARLING_WORKER_HOST_UNIT_RUNNER_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "worker/core/events.h"
#include "worker/host/gradient_pool.h"
#include "worker/host/progress.h"
#include "worker/host/served_job.h"

namespace starling {

// Hears of units, on any thread, OnGradient on several at once. Calls must be quick.
class UnitListener {
 public:
  virtual void OnBegin() = 0;
  // `gradient` lacks its buffer's id, and `buffer` has its digest.
  virtual void OnGradient(session::event::SliceGradient gradient,
                          std::shared_ptr<GradientBuffer> buffer) = 0;
  // Not for units that were abandoned. `waited`: for values and acknowledgements, on average over
  // lanes.
  virtual void OnComputed(session::event::UnitComputed unit, absl::Duration waited) = 0;
  virtual void OnFailed(session::event::UnitFailed unit, absl::Duration waited) = 0;
  // The last of each unit that was started, abandoned or not: it reads no values any more.
  virtual void OnStopped(session::UnitId unit) = 0;

 protected:
  ~UnitListener() = default;
};

// Computes units one after another. Start, Abandon and Release are called by one thread.
class UnitRunner {
 public:
  virtual ~UnitRunner() = default;  // abandons, and waits

  // The unit begins when the one before has stopped. `job` was made by the opener that goes with
  // this runner.
  virtual void Start(std::shared_ptr<ServedJob> job, session::action::Compute compute) = 0;

  // Makes the unit stop soon; what it still says may be ignored.
  virtual void Abandon(session::UnitId unit) = 0;

  // The job of the last unit is over: lets go of it, and of its memory, which the next job may
  // need, as soon as the unit has stopped.
  virtual void Release() = 0;

  // Calls `stopped`, on any thread, when all units that were started before have stopped and let go
  // of their jobs; not where the runner ends before. Returns at once. Thread-safe.
  virtual void WhenStopped(std::function<void()> stopped) = 0;

  // Gives the memory that units and their jobs left back to the system, when those that were
  // started before have stopped. Returns at once. Thread-safe.
  virtual void ReturnMemory() = 0;
};

// `listener` and `progress`, which is told how units get on, outlive the runner.
using MakeUnitRunner =
    std::function<std::unique_ptr<UnitRunner>(UnitListener* listener, Progress* progress)>;

}  // namespace starling

#endif  // STARLING_WORKER_HOST_UNIT_RUNNER_H_
