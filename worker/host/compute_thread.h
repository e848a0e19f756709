// The thread that computes units, one after another, and tells the session what came of them.
#ifndef STARLING_WORKER_HOST_COMPUTE_THREAD_H_
#define STARLING_WORKER_HOST_COMPUTE_THREAD_H_

#include <atomic>
#include <functional>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/object_pool.h"
#include "common/event_loop/threaded_loop.h"
#include "common/trace/span_ring.h"
#include "worker/core/events.h"
#include "worker/host/progress.h"
#include "worker/host/push_sink.h"
#include "worker/host/served_job.h"

namespace starling {

class StepRecorder;

struct FinishedGradient : PushedGradient {
  session::UnitId unit;
};

struct FinishedUnit {
  session::UnitId unit;
  absl::Status status;
  bool device_lost = false;  // with a status that is not OK
  UnitResult result;
};

// Called on the computing thread; on_gradient also on any of the executor's, several at once. Must
// be quick.
struct ComputeListener {
  std::function<void(session::UnitId)> on_begin;
  std::function<void(FinishedGradient)> on_gradient;
  std::function<void(FinishedUnit)> on_unit;  // not for units that were abandoned
  // The last of each unit that was started, abandoned or not: it reads no values any more.
  std::function<void(session::UnitId)> on_stopped;
};

// Start, Abandon and Release are called by one thread.
class ComputeThread {
 public:
  // `recorder` may be null; it, `progress` and `listener`'s captures outlive this.
  ComputeThread(ComputeListener listener, StepRecorder* recorder, Progress* progress);
  ~ComputeThread();  // abandons, and waits

  // The unit begins when the one before has stopped.
  void Start(std::shared_ptr<ServedJob> job, session::action::Compute compute);

  // Makes the unit stop soon; what it still says may be ignored.
  void Abandon(session::UnitId unit);

  // The job of the last unit is over: lets go of it, and of its memory, which the next job may
  // need, as soon as the unit has stopped.
  void Release();

  // Blocks until all units that were started before have stopped. Thread-safe; not for this
  // thread's own callbacks.
  void WaitUntilStopped();

  // Gives the memory that units and their jobs left back to the system, when those that were
  // started before have stopped. Returns at once. Thread-safe.
  void ReturnMemory();

 private:
  struct Task {
    std::shared_ptr<ServedJob> job;
    session::action::Compute compute;
    std::atomic<bool> cancelled = false;
    void Recycle() { job.reset(); }
  };
  void Run(const std::shared_ptr<Task>& task);
  void Compute(const std::shared_ptr<Task>& task);

  const ComputeListener listener_;
  StepRecorder* const recorder_;
  Progress* const progress_;
  ObjectPool<Task> tasks_;
  std::shared_ptr<Task> current_;  // the caller's: the last one started
  // Of what is noted of a unit, each used again, by the thread that runs it and the executor's.
  std::pmr::unsynchronized_pool_resource batch_memory_, push_memory_;
  ThreadedLoop loop_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_COMPUTE_THREAD_H_
