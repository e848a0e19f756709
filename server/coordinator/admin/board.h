// What an owner last said, for those who may not wait for it for long.
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

namespace starling {

// Asks only when somebody wants to know, and at most once per `max_age`: however often it is looked
// at, the owner has little to do. Thread-safe.
template <typename T>
class Board {
 public:
  using Answer = std::function<void(std::shared_ptr<const T>)>;
  // Asks the owner; the answer may come at once or later, on any thread, or never. nullptr: there
  // is none.
  using Ask = std::function<void(Answer)>;

  Board(Ask ask, absl::Duration max_age, absl::Duration patience)
      : ask_(std::move(ask)), max_age_(max_age), patience_(patience) {}

  // Not older than `max_age`. nullptr: the owner did not answer within `patience` of the question,
  // or had no answer.
  std::shared_ptr<const T> Get() {
    const absl::Time now = MonotonicNow();
    {
      MutexLock lock(&state_->mutex);
      if (state_->value != nullptr && now - state_->as_of < max_age_) return state_->value;
      if (!state_->asked) {
        state_->asked = true;
        state_->asked_at = now;
      } else {
        return Await();  // the answer to an earlier question is still to come
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
    bool asked ABSL_GUARDED_BY(mutex) = false;  // and not answered
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

  // An owner that is silent is waited for once, not by each who looks.
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
  // An answer may come when we are gone.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Boards by name: of the `kept` names that were asked for last. Not thread-safe.
template <typename T>
class Boards {
 public:
  using Make = std::function<Board<T>(const std::string& name)>;

  Boards(size_t kept, Make make) : kept_(kept), make_(std::move(make)) {}

  // As Board::Get, of the board with this name.
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

  // Forgets the names of which `gone` is true.
  void EraseIf(const std::function<bool(const std::string&)>& gone) {
    boards_.remove_if([&](const auto& entry) { return gone(entry.first); });
  }

 private:
  const size_t kept_;
  const Make make_;
  std::list<std::pair<std::string, Board<T>>> boards_;  // who was asked for last comes first
};

}  // namespace starling

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_BOARD_H_
