// One thread that runs what is posted to it, in order: the owner of a pure core and of whatever
// else must not be touched by two threads.
#ifndef STARLING_COMMON_EVENT_LOOP_EVENT_LOOP_H_
#define STARLING_COMMON_EVENT_LOOP_EVENT_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory_resource>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "common/base/roomy_deque.h"
#include "common/event_loop/task.h"
#include "common/sync/mutex.h"

namespace starling {

// Thread-safe. Tasks must not block for long, and may post, cancel, and stop from within. Posting
// allocates nothing while no more than kTasksAtFirst tasks wait, and no more of them or of timers
// than did before, but for what a task captures beyond Task::kBytesInline.
class EventLoop {
 public:
  using TimerId = uint64_t;  // 0 is never used

  // There is room for so many from the begin: bursts come late, too, and then there is no time for
  // it.
  static constexpr size_t kTasksAtFirst = 128;

  // `name` is the thread's name (15 bytes are kept).
  explicit EventLoop(const std::string& name);
  ~EventLoop();  // Stop()
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs `task` on the loop's thread, after what was posted before. False, and the task destroyed
  // unrun, once the loop was stopped.
  bool Post(Task task);

  // Runs `task` at `when`, a time of MonotonicNow's, or soon after; timers that are due run in the
  // order of their times, those of one time in the order of posting. Returns 0 once the loop was
  // stopped.
  TimerId PostAt(absl::Time when, Task task);
  TimerId PostAfter(absl::Duration delay, Task task);

  // True if the timer had not started. One that did start may still be running, except when called
  // on the loop's own thread.
  bool Cancel(TimerId timer);

  // Runs all tasks posted before, drops timers, and joins the thread. Called on the loop's own
  // thread it only begins to; another thread's Stop() or the destructor then joins. Idempotent.
  void Stop();

  bool InLoop() const;

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::pmr::unsynchronized_pool_resource memory_ ABSL_GUARDED_BY(mutex_);  // of what waits
  std::pmr::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_) = RoomyDeque<Task>(kTasksAtFirst, &memory_);
  using Timers = std::pmr::map<std::pair<absl::Time, TimerId>, Task>;
  Timers timers_ ABSL_GUARDED_BY(mutex_){&memory_};
  std::pmr::map<TimerId, absl::Time> timer_times_ ABSL_GUARDED_BY(mutex_){&memory_};
  TimerId next_timer_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex join_mutex_;
  std::thread thread_;
  const std::thread::id thread_id_;
};

}  // namespace starling

#endif  // STARLING_COMMON_EVENT_LOOP_EVENT_LOOP_H_
