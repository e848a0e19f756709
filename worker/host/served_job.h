// A job as the host serves it, and what opens jobs: what the host knows of data, devices and
// memory. Implemented by executor_job.h and job_opener.h, and by the simulator.
#ifndef STARLING_WORKER_HOST_SERVED_JOB_H_
#define STARLING_WORKER_HOST_SERVED_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/placement/layout.h"
#include "common/protocol/types.h"
#include "proto/coordinator.pb.h"
#include "worker/core/events.h"
#include "worker/executor/executor_times.h"
#include "worker/host/parameter_copy.h"

namespace starling {

// Bytes; device_peak: see Executor::device_peak_bytes.
struct JobMemory {
  uint64_t planned = 0;
  uint64_t activations = 0;
  uint64_t pinned = 0;
  uint64_t resident_peak = 0;  // of the process
  uint64_t device_peak = 0;
};

// Made by a JobOpener, used by the session's thread, and by the UnitRunner that goes with the
// opener, which holds it until the last unit has stopped.
class ServedJob {
 public:
  virtual ~ServedJob() = default;
  ServedJob(const ServedJob&) = delete;
  ServedJob& operator=(const ServedJob&) = delete;

  const JobDescription& description() const { return description_; }
  const Layout& layout() const { return layout_; }
  RunId run() const;
  std::vector<session::SliceShape> SliceShapes() const;

  virtual ParameterCopy& copy(session::Params params) = 0;

  // Has the range's micro-batches read ahead of time, after those that were asked for before. Never
  // blocks.
  virtual absl::Status Prefetch(const WorkRange& range) = 0;
  // What was asked for is not wanted any more.
  virtual void ClearPrefetched() = 0;

  // Of the data that it opened (worker/data/data_digest.h).
  virtual uint64_t data_digest() const = 0;
  virtual JobMemory memory() const = 0;
  virtual ExecutorTimes times() const = 0;
  // For logs: why some operators are computed more slowly than the device could.
  virtual std::vector<std::string> slower_operators() const = 0;

 protected:
  ServedJob(JobDescription description, Layout layout)
      : description_(std::move(description)), layout_(std::move(layout)) {}

 private:
  const JobDescription description_;
  const Layout layout_;
};

struct OpenedJob {
  absl::StatusOr<std::shared_ptr<ServedJob>> job;
  bool device_lost = false;  // with an error: nothing can be computed in this process any more
};

// Opens jobs and looks at data, one after another. Calls return at once; what they ask for takes as
// long as reading files does. `done` is called once, on any thread, unless the opener ends before.
class JobOpener {
 public:
  virtual ~JobOpener() = default;  // waits for what is under way

  // Opens the data, resolves graph and layout, plans memory. kFailedPrecondition: this build lays
  // the job out differently than the coordinator's. Else the errors of the parts.
  virtual void Open(const JobDescription& description, std::function<void(OpenedJob)> done) = 0;

  virtual void Inspect(const JobSpec& spec, std::function<void(Inspection)> done) = 0;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_SERVED_JOB_H_
