// Runs the tasks posted to it one at a time, in order: the owner of a pure core and of everything
// else that two threads must not touch. Hosts are given their loops, so that the simulator runs
// them in one thread on simulated time.
#ifndef STARLING_COMMON_EVENT_LOOP_EVENT_LOOP_H_
#define STARLING_COMMON_EVENT_LOOP_EVENT_LOOP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/event_loop/task.h"

namespace starling {

// Thread-safe. Tasks must not block for long, and may post, cancel, and stop from within.
class EventLoop {
 public:
  using TimerId = uint64_t;  // 0 is never used

  virtual ~EventLoop() = default;  // Stop()

  // A clock that steps of the wall clock do not move; comparable between the loops of one process.
  virtual absl::Time Now() const = 0;

  // Runs `task` on the loop's thread, after what was posted before. False, and the task destroyed
  // unrun, once the loop was stopped.
  virtual bool Post(Task task) = 0;

  // Runs `task` at `when`, a time of Now's, or soon after; due timers run in the order of their
  // times, those of one time in the order of posting. Returns 0 once the loop was stopped.
  virtual TimerId PostAt(absl::Time when, Task task) = 0;
  TimerId PostAfter(absl::Duration delay, Task task) {
    return PostAt(Now() + delay, std::move(task));
  }

  // True if the timer had not started. One that did start may still be running, except when called
  // on the loop's own thread.
  virtual bool Cancel(TimerId timer) = 0;

  // Runs all tasks posted before and drops timers. On another thread it returns when the last task
  // has returned; on the loop's own it only begins to, and another Stop() or the destructor waits.
  // Idempotent.
  virtual void Stop() = 0;

  virtual bool InLoop() const = 0;
};

// Makes a loop. `name` is its thread's name (15 bytes are kept). Thread-safe.
using MakeEventLoop = std::function<std::unique_ptr<EventLoop>(const std::string& name)>;

}  // namespace starling

#endif  // STARLING_COMMON_EVENT_LOOP_EVENT_LOOP_H_
