// For tests: an event loop without a thread, whose clock stands still until the test moves it.
#ifndef STARLING_COMMON_EVENT_LOOP_TESTING_MANUAL_LOOP_H_
#define STARLING_COMMON_EVENT_LOOP_TESTING_MANUAL_LOOP_H_

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "common/event_loop/event_loop.h"

namespace starling {

// One thread. Tasks run within Advance.
class ManualLoop final : public EventLoop {
 public:
  absl::Time Now() const override { return now_; }

  bool Post(Task task) override {
    if (stopped_) return false;
    tasks_.push_back(std::move(task));
    return true;
  }
  TimerId PostAt(absl::Time when, Task task) override {
    if (stopped_) return 0;
    const TimerId id = ++last_timer_;
    timers_.emplace(std::pair(when, id), std::move(task));
    return id;
  }
  bool Cancel(TimerId timer) override {
    return std::erase_if(timers_, [&](const auto& entry) { return entry.first.second == timer; }) >
           0;
  }
  void Stop() override {
    stopped_ = true;
    timers_.clear();
    RunPosted();
  }
  bool InLoop() const override { return true; }

  // Runs what was posted, and each timer that becomes due by then, at its time.
  void Advance(absl::Duration by) {
    const absl::Time until = now_ + by;
    RunPosted();
    while (!timers_.empty() && timers_.begin()->first.first <= until) {
      const auto first = timers_.begin();
      now_ = std::max(now_, first->first.first);
      Task task = std::move(first->second);
      timers_.erase(first);
      task();
      RunPosted();
    }
    now_ = until;
  }

 private:
  void RunPosted() {
    while (!tasks_.empty()) {
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }

  absl::Time now_ = absl::UnixEpoch();
  std::deque<Task> tasks_;
  std::map<std::pair<absl::Time, TimerId>, Task> timers_;
  TimerId last_timer_ = 0;
  bool stopped_ = false;
};

}  // namespace starling

#endif  // STARLING_COMMON_EVENT_LOOP_TESTING_MANUAL_LOOP_H_
