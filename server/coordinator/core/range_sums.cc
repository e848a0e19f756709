#include "server/coordinator/core/range_sums.h"

#include <iterator>

#include "common/defences.h"

namespace starling {

bool RangeSums::Add(const StepMetrics& metrics) {
  const uint64_t first = metrics.work().first();
  const uint64_t count = metrics.work().count();
  if (count == 0 || (count & (count - 1)) != 0 || first % count != 0) return false;
  const uint64_t end = first + count;
  if (end < first) return false;

  if (!DefenceMasked(Defence::kEvaluationRangeOnce)) {
    auto after = ranges_.upper_bound(first);
    if (after != ranges_.begin() && std::prev(after)->second.end >= end) return false;
    auto inside = ranges_.lower_bound(first);
    while (inside != ranges_.end() && inside->first < end) {
      ids_ -= inside->second.end - inside->first;
      inside = ranges_.erase(inside);
    }
  }
  ranges_.emplace(first, Entry{end, metrics.loss_sum(), metrics.samples(), metrics.correct()});
  ids_ += count;
  return true;
}

bool RangeSums::Has(uint64_t id) const {
  auto after = ranges_.upper_bound(id);
  return after != ranges_.begin() && std::prev(after)->second.end > id;
}

RangeSums::Total RangeSums::Sum() const {
  Total total;
  for (const auto& [first, entry] : ranges_) {
    total.loss_sum += entry.loss_sum;
    total.samples += entry.samples;
    total.correct += entry.correct;
  }
  return total;
}

}  // namespace starling
