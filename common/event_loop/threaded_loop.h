// An event loop with a thread of its own.
#ifndef STARLING_COMMON_EVENT_LOOP_THREADED_LOOP_H_
#define STARLING_COMMON_EVENT_LOOP_THREADED_LOOP_H_

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/roomy_deque.h"
#include "common/event_loop/event_loop.h"
#include "common/sync/mutex.h"

namespace starling {

// Posting allocates nothing while no more than kTasksAtFirst tasks wait, and no more tasks or
// timers than waited before, except for captures beyond Task::kBytesInline.
class ThreadedLoop final : public EventLoop {
 public:
  // Bursts come late, too, when there is no time to allocate.
  static constexpr size_t kTasksAtFirst = 128;

  explicit ThreadedLoop(const std::string& name);
  ~ThreadedLoop() override;
  ThreadedLoop(const ThreadedLoop&) = delete;
  ThreadedLoop& operator=(const ThreadedLoop&) = delete;

  static std::unique_ptr<EventLoop> Make(const std::string& name) {
    return std::make_unique<ThreadedLoop>(name);
  }

  absl::Time Now() const override { return MonotonicNow(); }
  bool Post(Task task) override;
  TimerId PostAt(absl::Time when, Task task) override;
  bool Cancel(TimerId timer) override;
  void Stop() override;
  bool InLoop() const override;

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

#endif  // STARLING_COMMON_EVENT_LOOP_THREADED_LOOP_H_
