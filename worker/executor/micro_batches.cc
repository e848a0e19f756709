#include "worker/executor/micro_batches.h"

#include <algorithm>

namespace starling {
namespace {

// A range's sum is that of its halves, so it does not depend on how workers divide a step.
Outcome SumOf(absl::Span<const Outcome> outcomes) {
  if (outcomes.size() <= 1) return outcomes.empty() ? Outcome() : outcomes[0];
  Outcome sum = SumOf(outcomes.first(outcomes.size() / 2));
  const Outcome right = SumOf(outcomes.subspan(outcomes.size() / 2));
  sum.loss_sum += right.loss_sum;
  sum.samples += right.samples;
  sum.correct += right.correct;
  return sum;
}

}  // namespace

void MicroBatches::Begin(absl::Span<const WorkRange> ranges) {
  ranges_ = ranges;
  ends_.clear();
  uint64_t count = 0;
  for (const WorkRange& range : ranges) ends_.push_back(count += range.count);
  outcomes_.assign(count, {});
  next_ = 0;
}

std::optional<Taken> MicroBatches::Take() {
  Taken taken;
  taken.index = next_.fetch_add(1);
  if (taken.index >= outcomes_.size()) return std::nullopt;
  taken.range = std::upper_bound(ends_.begin(), ends_.end(), taken.index) - ends_.begin();
  const WorkRange& work = ranges_[taken.range];
  taken.leaf = taken.index - (ends_[taken.range] - work.count);
  taken.id = work.first + taken.leaf;
  return taken;
}

void MicroBatches::Sum(absl::InlinedVector<RangeResult, 8>* results) const {
  results->clear();
  uint64_t begin = 0;
  for (const uint64_t end : ends_) {
    const Outcome sum = SumOf(absl::MakeConstSpan(outcomes_).subspan(begin, end - begin));
    results->push_back({sum.loss_sum, sum.samples, sum.correct});
    begin = end;
  }
}

}  // namespace starling
