// Opens jobs and looks at data on a thread of its own.
#ifndef STARLING_WORKER_HOST_JOB_OPENER_H_
#define STARLING_WORKER_HOST_JOB_OPENER_H_

#include <functional>

#include "common/event_loop/threaded_loop.h"
#include "common/trace/span_ring.h"
#include "worker/host/devices.h"
#include "worker/host/executor_job.h"
#include "worker/host/served_job.h"

namespace starling {

// Its jobs are ExecutorJobs.
class BackgroundJobOpener final : public JobOpener {
 public:
  // `devices` and `spans` outlive this and its jobs.
  BackgroundJobOpener(const ExecutorJobOptions& options, const WorkerDevices* devices,
                      SpanRing* spans)
      : options_(options), devices_(devices), spans_(spans), loop_("background") {}

  void Open(const JobDescription& description, std::function<void(OpenedJob)> done) override;
  void Inspect(const JobSpec& spec, std::function<void(Inspection)> done) override;

 private:
  OpenedJob OpenNow(const JobDescription& description) const;

  const ExecutorJobOptions options_;
  const WorkerDevices* const devices_;
  SpanRing* const spans_;
  ThreadedLoop loop_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_JOB_OPENER_H_
