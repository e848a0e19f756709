// The thread that computes units, one after another, and tells the host what came of them.
#ifndef STARLING_WORKER_HOST_COMPUTE_THREAD_H_
#define STARLING_WORKER_HOST_COMPUTE_THREAD_H_

#include <atomic>
#include <functional>
#include <memory>
#include <memory_resource>

#include "common/base/object_pool.h"
#include "common/event_loop/threaded_loop.h"
#include "worker/core/events.h"
#include "worker/host/executor_job.h"
#include "worker/host/progress.h"
#include "worker/host/unit_runner.h"

namespace starling {

// Its jobs are ExecutorJobs. The listener is called on this thread, and OnGradient also on any of
// the executor's.
class ComputeThread final : public UnitRunner {
 public:
  // Both outlive this.
  ComputeThread(UnitListener* listener, Progress* progress);
  ~ComputeThread() override;

  void Start(std::shared_ptr<ServedJob> job, session::action::Compute compute) override;
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
  void Run(const std::shared_ptr<Task>& task);
  void Compute(const std::shared_ptr<Task>& task);
  void Tell(const Task& task, const absl::Status& status, UnitResult result);

  UnitListener* const listener_;
  Progress* const progress_;
  ObjectPool<Task> tasks_;
  std::shared_ptr<Task> current_;  // the caller's: the last one started
  // Of what is noted of a unit, each used again, by the thread that runs it and the executor's.
  std::pmr::unsynchronized_pool_resource batch_memory_, push_memory_;
  ThreadedLoop loop_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_COMPUTE_THREAD_H_
