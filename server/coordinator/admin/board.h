// Caches an owner's last answer for readers that cannot wait long for a new one.
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_BOARD_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_BOARD_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/sync/mutex.h"

namespace starling::coordinator {

// Asks the owner on demand, and at most once per `max_age`, so frequent reads do not load the
// owner. Thread-safe.
template <typename T>
class Board {
 public:
  using Answer = std::function<void(std::shared_ptr<const T>)>;
  // Asks the owner. The answer may come at once or later, on any thread, or never. nullptr: the
  // owner has no value.
  using Ask = std::function<void(Answer)>;

  Board(Ask ask, absl::Duration max_age, absl::Duration patience)
      : ask_(std::move(ask)), max_age_(max_age), patience_(patience) {}

  // Blocks until `patience` after the question at most. The value is not older than `max_age`.
  // nullptr: the owner did not answer in time or has no value.
  std::shared_ptr<const T> Get() {
    const absl::Time now = MonotonicNow();
    {
      MutexLock lock(&state_->mutex);
      if (state_->value != nullptr && now - state_->as_of < max_age_) return state_->value;
      if (!state_->asked) {
        state_->asked = true;
        state_->asked_at = now;
      } else {
        return Await();  // an earlier question is still pending
      }
    }
    ask_([state = state_](std::shared_ptr<const T> value) { Take(*state, std::move(value)); });
    MutexLock lock(&state_->mutex);
    return Await();
  }

 private:
  struct State {
    Mutex mutex;
    CondVar answered;
    bool asked ABSL_GUARDED_BY(mutex) = false;  // a question is pending
    absl::Time asked_at ABSL_GUARDED_BY(mutex);
    absl::Time as_of ABSL_GUARDED_BY(mutex) = absl::InfinitePast();
    std::shared_ptr<const T> value ABSL_GUARDED_BY(mutex);
  };

  static void Take(State& state, std::shared_ptr<const T> value) {
    MutexLock lock(&state.mutex);
    state.asked = false;
    state.as_of = state.asked_at;
    state.value = std::move(value);
    state.answered.SignalAll();
  }

  // The deadline counts from the question, so readers share one wait for a silent owner.
  std::shared_ptr<const T> Await() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    const absl::Time until = state_->asked_at + patience_;
    while (state_->asked) {
      if (state_->answered.WaitWithDeadline(&state_->mutex, until)) break;
    }
    return state_->asked ? nullptr : state_->value;
  }

  const Ask ask_;
  const absl::Duration max_age_;
  const absl::Duration patience_;
  // Shared with pending questions: an answer may arrive after the board is destroyed.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Boards by name, for the `kept` most recently requested names. Not thread-safe.
template <typename T>
class Boards {
 public:
  using Make = std::function<Board<T>(const std::string& name)>;

  Boards(size_t kept, Make make) : kept_(kept), make_(std::move(make)) {}

  // As Board::Get, for the board of this name.
  std::shared_ptr<const T> Get(const std::string& name) {
    const auto known = std::find_if(boards_.begin(), boards_.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    if (known != boards_.end()) {
      boards_.splice(boards_.begin(), boards_, known);
    } else {
      boards_.emplace_front(name, make_(name));
      if (boards_.size() > kept_) boards_.pop_back();
    }
    return boards_.front().second.Get();
  }

  // Drops the boards whose name satisfies `gone`.
  void EraseIf(const std::function<bool(const std::string&)>& gone) {
    boards_.remove_if([&](const auto& entry) { return gone(entry.first); });
  }

 private:
  const size_t kept_;
  const Make make_;
  std::list<std::pair<std::string, Board<T>>> boards_;  // most recently requested first
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_BOARD_H_
