// A job that the host serves: its data, device and memory as the host sees them. Implemented by
// executor_job.h and by the simulator.
#ifndef STARLING_WORKER_HOST_SERVED_JOB_H_
#define STARLING_WORKER_HOST_SERVED_JOB_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/placement/layout.h"
#include "common/protocol/types.h"
#include "proto/coordinator.pb.h"
#include "worker/core/session.h"
#include "worker/executor/executor_times.h"
#include "worker/host/parameter_copy.h"

namespace starling {

// Made by a JobRunner (job_runner.h), which holds it until its last unit has stopped. Used on the
// session's thread.
class ServedJob {
 public:
  virtual ~ServedJob() = default;
  ServedJob(const ServedJob&) = delete;
  ServedJob& operator=(const ServedJob&) = delete;

  const JobDescription& description() const { return description_; }
  const Layout& layout() const { return layout_; }
  RunId run() const { return session::RunOf(description_.run()); }
  std::vector<session::SliceShape> SliceShapes() const;

  virtual ParameterCopy& copy(session::Params params) = 0;

  // The unit begins after the previous unit, of any job, has stopped.
  virtual void Start(session::action::Compute compute) = 0;

  // Reads the range's micro-batches ahead, after those that were requested before. Never blocks.
  virtual absl::Status Prefetch(const WorkRange& range) = 0;
  // Drops all requests to read ahead.
  virtual void ClearPrefetched() = 0;

  // The digest of the opened data (worker/data/data_digest.h).
  virtual uint64_t data_digest() const = 0;
  virtual MemoryUse memory() const = 0;
  virtual ExecutorTimes times() const = 0;
  // For logs: operators that are slower than the device allows, and why.
  virtual std::vector<std::string> slower_operators() const = 0;

 protected:
  ServedJob(JobDescription description, Layout layout)
      : description_(std::move(description)), layout_(std::move(layout)) {}

 private:
  const JobDescription description_;
  const Layout layout_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_SERVED_JOB_H_
