#include "worker/executor/micro_batches.h"

#include <algorithm>

namespace starling {

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
  results->assign(ranges_.size(), {});
  uint64_t index = 0;
  for (size_t r = 0; r < ranges_.size(); ++r) {
    for (; index < ends_[r]; ++index) {
      (*results)[r].loss_sum += outcomes_[index].loss_sum;
      (*results)[r].samples += outcomes_[index].samples;
      (*results)[r].correct += outcomes_[index].correct;
    }
  }
}

}  // namespace starling
