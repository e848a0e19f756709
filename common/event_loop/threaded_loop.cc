#include "common/event_loop/threaded_loop.h"

#include <pthread.h>

namespace starling {

ThreadedLoop::ThreadedLoop(const std::string& name)
    : thread_([this] { Run(); }), thread_id_(thread_.get_id()) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

ThreadedLoop::~ThreadedLoop() { Stop(); }

bool ThreadedLoop::Post(Task task) {
  MutexLock lock(&mutex_);
  if (stopping_) return false;
  tasks_.push_back(std::move(task));
  changed_.Signal();
  return true;
}

ThreadedLoop::TimerId ThreadedLoop::PostAt(absl::Time when, Task task) {
  MutexLock lock(&mutex_);
  if (stopping_) return 0;
  const TimerId id = next_timer_++;
  timers_.emplace(std::pair(when, id), std::move(task));
  timer_times_.emplace(id, when);
  changed_.Signal();
  return id;
}

bool ThreadedLoop::Cancel(TimerId timer) {
  Task dropped;  // destroyed without the mutex
  MutexLock lock(&mutex_);
  const auto time = timer_times_.find(timer);
  if (time == timer_times_.end()) return false;
  const auto it = timers_.find({time->second, timer});
  dropped = std::move(it->second);
  timers_.erase(it);
  timer_times_.erase(time);
  return true;
}

void ThreadedLoop::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  if (InLoop()) return;
  MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

bool ThreadedLoop::InLoop() const { return std::this_thread::get_id() == thread_id_; }

void ThreadedLoop::Run() {
  for (;;) {
    Task task;
    bool dropped = false;  // a timer of a stopping loop: destroyed unrun, without the mutex
    {
      MutexLock lock(&mutex_);
      for (;;) {
        if (stopping_ && !timers_.empty()) {
          timer_times_.clear();
          task = std::move(timers_.begin()->second);
          dropped = true;
          timers_.erase(timers_.begin());
          break;
        }
        // A due timer goes before posted tasks, so that a flood of those cannot starve it.
        const auto first = timers_.begin();
        if (first != timers_.end() && first->first.first <= MonotonicNow()) {
          task = std::move(first->second);
          timer_times_.erase(first->first.second);
          timers_.erase(first);
          break;
        }
        if (!tasks_.empty()) {
          task = std::move(tasks_.front());
          tasks_.pop_front();
          break;
        }
        if (stopping_) return;
        changed_.WaitWithDeadline(
            &mutex_, first == timers_.end() ? absl::InfiniteFuture() : first->first.first);
      }
    }
    if (!dropped) task();
  }
}

}  // namespace starling
