// Opens jobs and computes their units for the host. Implemented by executor_runner.h and by the
// simulator.
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

// Receives events of units on any thread; OnGradient on several threads at once. Calls must be
// quick.
class UnitListener {
 public:
  virtual void OnBegin() = 0;
  // `gradient` has no buffer id yet. `buffer` has its digest.
  virtual void OnGradient(session::event::SliceGradient gradient,
                          std::shared_ptr<GradientBuffer> buffer) = 0;
  // The next two are not called for abandoned units. `waited`: time spent waiting for values and
  // acknowledgements, averaged over lanes.
  virtual void OnComputed(session::event::UnitComputed unit, absl::Duration waited) = 0;
  virtual void OnFailed(session::event::UnitFailed unit, absl::Duration waited) = 0;
  // The last call for each started unit, abandoned or not: it reads no values any more.
  virtual void OnStopped(session::UnitId unit) = 0;

 protected:
  ~UnitListener() = default;
};

struct OpenedJob {
  absl::StatusOr<std::shared_ptr<ServedJob>> job;
  bool device_lost = false;  // with an error: this process can compute nothing any more
};

// Opens jobs, inspects data, and computes units of its jobs, each one at a time and beside the
// others.
// Abandon, Release and its jobs' Start are called by one thread. All calls return at once.
class JobRunner {
 public:
  virtual ~JobRunner() = default;  // abandons units and waits for them and for files

  // Opens the data, resolves graph and layout, and plans memory, which may take as long as reading
  // files. `done` is called once, on any thread, unless the runner ends first. kFailedPrecondition:
  // this build's layout of the job differs from the coordinator's. Other errors are those of the
  // parts.
  virtual void Open(const JobDescription& description, std::function<void(OpenedJob)> done) = 0;
  // `done` is as for Open.
  virtual void Inspect(const JobSpec& spec, std::function<void(Inspection)> done) = 0;

  // Makes the unit stop soon. Its later events may be ignored.
  virtual void Abandon(session::UnitId unit) = 0;

  // The job of the last unit is over: releases it, with the memory that the next job may need, as
  // soon as the unit has stopped.
  virtual void Release() = 0;

  // Calls `stopped`, on any thread, when all units that were started before have stopped and
  // released their jobs, unless the runner ends first. Thread-safe.
  virtual void WhenStopped(std::function<void()> stopped) = 0;

  // Returns memory that units and their jobs have freed to the system, after all units that were
  // started before have stopped. Thread-safe.
  virtual void ReturnMemory() = 0;
};

// `listener` and `progress`, to which units report their progress, outlive the runner.
using MakeJobRunner =
    std::function<std::unique_ptr<JobRunner>(UnitListener* listener, Progress* progress)>;

}  // namespace starling

#endif  // STARLING_WORKER_HOST_JOB_RUNNER_H_
