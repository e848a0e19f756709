// Sums up the time spent in each state.
#ifndef STARLING_WORKER_HOST_TIME_SPENT_H_
#define STARLING_WORKER_HOST_TIME_SPENT_H_

#include <map>

#include "absl/time/time.h"

namespace starling {

// Not thread-safe. The caller passes the time. If it goes back, nothing is counted.
template <typename State>
class TimeSpent {
 public:
  // Starts over, in `state`.
  void Begin(State state, absl::Time now) {
    spent_.clear();
    state_ = state;
    since_ = now;
  }

  void Become(State state, absl::Time now) {
    if (now > since_) spent_[state_] += now - since_;
    state_ = state;
    since_ = now;
  }

  double seconds(State state, absl::Time now) const {
    const auto it = spent_.find(state);
    absl::Duration spent = it == spent_.end() ? absl::ZeroDuration() : it->second;
    if (state == state_ && now > since_) spent += now - since_;
    return absl::ToDoubleSeconds(spent);
  }

 private:
  State state_ = State();
  absl::Time since_ = absl::InfiniteFuture();
  std::map<State, absl::Duration> spent_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_TIME_SPENT_H_
