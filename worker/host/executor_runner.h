// Runs jobs on this machine's devices: one thread opens jobs, another computes their units, and a
// third inspects data, so that data which hangs keeps no other job from being opened.
#ifndef STARLING_WORKER_HOST_EXECUTOR_RUNNER_H_
#define STARLING_WORKER_HOST_EXECUTOR_RUNNER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <memory_resource>

#include "common/base/object_pool.h"
#include "common/event_loop/threaded_loop.h"
#include "common/trace/span_ring.h"
#include "worker/core/events.h"
#include "worker/host/devices.h"
#include "worker/host/executor_job.h"
#include "worker/host/job_runner.h"
#include "worker/host/progress.h"

namespace starling {

// Its jobs are ExecutorJobs. The listener is called on the computing thread, and OnGradient also on
// any of the executor's threads.
class ExecutorRunner final : public JobRunner {
 public:
  // All pointers outlive this; `devices` and `spans` also outlive its jobs.
  ExecutorRunner(const ExecutorJobOptions& options, const WorkerDevices* devices, SpanRing* spans,
                 UnitListener* listener, Progress* progress);
  ~ExecutorRunner() override;

  void Open(const JobDescription& description, std::function<void(OpenedJob)> done) override;
  void Inspect(const JobSpec& spec, std::function<void(Inspection)> done) override;
  void Start(std::shared_ptr<ExecutorJob> job, session::action::Compute compute);
  void Abandon(session::UnitId unit) override;
  void Release() override;
  void WhenStopped(std::function<void()> stopped) override;
  void ReturnMemory() override;

 private:
  struct Task {
    std::shared_ptr<ExecutorJob> job;
    session::action::Compute compute;
    std::atomic<bool> cancelled = false;
    void Recycle() { job.reset(); }
  };
  OpenedJob OpenNow(const JobDescription& description);
  void Run(const std::shared_ptr<Task>& task);
  void Compute(const std::shared_ptr<Task>& task);
  void Tell(const Task& task, const absl::Status& status, UnitResult result);

  const ExecutorJobOptions options_;
  const WorkerDevices* const devices_;
  SpanRing* const spans_;
  UnitListener* const listener_;
  Progress* const progress_;
  ObjectPool<Task> tasks_;
  std::shared_ptr<Task> current_;  // on the caller's thread: the last one started
  // Memory for a unit's bookkeeping, reused. Used by the thread that runs the unit and the
  // executor's threads.
  std::pmr::unsynchronized_pool_resource batch_memory_, push_memory_;
  ThreadedLoop compute_, background_, inspections_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_EXECUTOR_RUNNER_H_
