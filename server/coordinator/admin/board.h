// What an owner last said, for those who may not wait for it for long.
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_BOARD_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_BOARD_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/sync/mutex.h"

namespace starling {

// Asks only when somebody wants to know, and at most once per `max_age`: however often it is looked at,
// the owner has little to do. Thread-safe.
template <typename T>
class Board {
 public:
  using Answer = std::function<void(std::shared_ptr<const T>)>;
  // Asks the owner; the answer may come at once or later, on any thread, or never. nullptr: there is none.
  using Ask = std::function<void(Answer)>;

  Board(Ask ask, absl::Duration max_age, absl::Duration patience)
      : ask_(std::move(ask)), max_age_(max_age), patience_(patience) {}

  // Not older than `max_age`. nullptr: the owner did not answer within `patience`, or had no answer.
  std::shared_ptr<const T> Get() {
    const absl::Time now = absl::Now();
    {
      MutexLock lock(&state_->mutex);
      if (state_->value != nullptr && now - state_->as_of < max_age_) return state_->value;
      if (!state_->asked) {
        state_->asked = true;
        state_->asked_at = now;
      } else {
        return Await(now);  // the answer to an earlier question is still to come
      }
    }
    ask_([state = state_](std::shared_ptr<const T> value) { Take(*state, std::move(value)); });
    MutexLock lock(&state_->mutex);
    return Await(now);
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

  std::shared_ptr<const T> Await(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    while (state_->asked) {
      if (state_->answered.WaitWithDeadline(&state_->mutex, now + patience_)) break;
    }
    return state_->asked ? nullptr : state_->value;
  }

  const Ask ask_;
  const absl::Duration max_age_;
  const absl::Duration patience_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();  // an answer may come when we are gone
};

}  // namespace starling

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_BOARD_H_
