// What opens jobs and computes their units for the host. Implemented by executor_runner.h, and by
// the simulator.
#ifndef STARLING_WORKER_HOST_JOB_RUNNER_H_
#define STARLING_WORKER_HOST_JOB_RUNNER_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
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

struct OpenedJob {
  absl::StatusOr<std::shared_ptr<ServedJob>> job;
  bool device_lost = false;  // with an error: nothing can be computed in this process any more
};

// Opens jobs and looks at data, one after another, and computes the units of the jobs that it
// opened, one after another. Abandon, Release and the Start of its jobs are called by one thread.
// All calls return at once.
class JobRunner {
 public:
  virtual ~JobRunner() = default;  // abandons units, waits for them and for files

  // Opens the data, resolves graph and layout, plans memory; takes as long as reading files does.
  // `done` is called once, on any thread, unless the runner ends before. kFailedPrecondition: this
  // build lays the job out differently than the coordinator's. Else the errors of the parts.
  virtual void Open(const JobDescription& description, std::function<void(OpenedJob)> done) = 0;
  // `done` as for Open.
  virtual void Inspect(const JobSpec& spec, std::function<void(Inspection)> done) = 0;

  // Makes the unit stop soon; what it still says may be ignored.
  virtual void Abandon(session::UnitId unit) = 0;

  // The job of the last unit is over: lets go of it, and of its memory, which the next job may
  // need, as soon as the unit has stopped.
  virtual void Release() = 0;

  // Calls `stopped`, on any thread, when all units that were started before have stopped and let go
  // of their jobs; not where the runner ends before. Thread-safe.
  virtual void WhenStopped(std::function<void()> stopped) = 0;

  // Gives the memory that units and their jobs left back to the system, when those that were
  // started before have stopped. Thread-safe.
  virtual void ReturnMemory() = 0;
};

// `listener` and `progress`, which is told how units get on, outlive the runner.
using MakeJobRunner =
    std::function<std::unique_ptr<JobRunner>(UnitListener* listener, Progress* progress)>;

}  // namespace starling

#endif  // STARLING_WORKER_HOST_JOB_RUNNER_H_
