#include "tools/trace/clock_estimate.h"

#include <algorithm>

namespace starling::trace {

void ClockEstimate::Add(int64_t asked, int64_t answered, int64_t theirs) {
  if (answered < asked) return;
  const Trip trip = {asked + (answered - asked) / 2, theirs, (answered - asked + 1) / 2};
  std::optional<Trip>& best = second_round_ ? last_ : first_;
  if (!best || trip.error < best->error) best = trip;
}

void ClockEstimate::BeginSecondRound() { second_round_ = first_.has_value(); }

int64_t ClockEstimate::error() const {
  return last_ ? std::max(first_->error, last_->error) : first_->error;
}

int64_t ClockEstimate::OffsetAt(int64_t ours) const {
  const int64_t begin = first_->theirs - first_->ours;
  if (!last_ || ours <= first_->ours || last_->ours <= first_->ours) return begin;
  const int64_t end = last_->theirs - last_->ours;
  if (ours >= last_->ours) return end;
  const double part =
      static_cast<double>(ours - first_->ours) / static_cast<double>(last_->ours - first_->ours);
  return begin + static_cast<int64_t>(part * static_cast<double>(end - begin));
}

int64_t ClockEstimate::ToOurs(int64_t theirs) const {
  const int64_t before = first_->ours + (theirs - first_->theirs);
  if (!last_ || theirs <= first_->theirs || last_->theirs <= first_->theirs ||
      last_->ours <= first_->ours) {
    return before;
  }
  if (theirs >= last_->theirs) return last_->ours + (theirs - last_->theirs);
  const double part = static_cast<double>(theirs - first_->theirs) /
                      static_cast<double>(last_->theirs - first_->theirs);
  return first_->ours +
         static_cast<int64_t>(part * static_cast<double>(last_->ours - first_->ours));
}

}  // namespace starling::trace
