#include "server/coordinator/core/range_sums.h"

#include <iterator>

#include "common/defences.h"

namespace starling::coordinator {

bool RangeSums::Add(const StepMetrics& metrics) {
  const uint64_t first = metrics.work().first();
  const uint64_t count = metrics.work().count();
  if (count == 0 || (count & (count - 1)) != 0 || first % count != 0) return false;
  const uint64_t end = first + count;
  if (end < first) return false;

  if (!DefenceMasked(Defence::kEvaluationRangeOnce)) {
    if (folded_.NextCovered(first) < end) return false;
    auto after = ranges_.upper_bound(first);
    if (after != ranges_.begin() && std::prev(after)->second.end >= end) return false;
    auto inside = ranges_.lower_bound(first);
    while (inside != ranges_.end() && inside->first < end) {
      ids_ -= inside->second.end - inside->first;
      inside = ranges_.erase(inside);
    }
  }
  MergeSiblings(ranges_.emplace(
      first, Entry{end, {metrics.loss_sum(), metrics.samples(), metrics.correct()}}));
  ids_ += count;
  if (ranges_.size() > ranges_kept_) {
    const auto lowest = ranges_.begin();
    AddTo(folded_sum_, lowest->second.sum);
    folded_.MarkRange(lowest->first, lowest->second.end);
    ranges_.erase(lowest);
  }
  return true;
}

bool RangeSums::Has(uint64_t id) const {
  if (folded_.Has(id)) return true;
  auto after = ranges_.upper_bound(id);
  return after != ranges_.begin() && std::prev(after)->second.end > id;
}

RangeSums::Total RangeSums::Sum() const {
  Total total = folded_sum_;
  for (const auto& [first, entry] : ranges_) AddTo(total, entry.sum);
  return total;
}

void RangeSums::MergeSiblings(Entries::iterator it) {
  for (;;) {
    const uint64_t count = it->second.end - it->first;
    const bool is_left = (it->first & count) == 0;
    if (!is_left && it == ranges_.begin()) return;
    const auto left = is_left ? it : std::prev(it);
    const auto right = std::next(left);
    if (right == ranges_.end() || left->first != (it->first & ~count) ||
        left->second.end != right->first || right->second.end != right->first + count) {
      return;
    }
    left->second.end = right->second.end;
    AddTo(left->second.sum, right->second.sum);
    ranges_.erase(right);
    it = left;
  }
}

void RangeSums::AddTo(Total& total, const Total& more) {
  total.loss_sum += more.loss_sum;
  total.samples += more.samples;
  total.correct += more.correct;
}

std::vector<std::pair<uint64_t, uint64_t>> RangeSums::Ranges() const {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  if (folded_.floor() > 0) ranges.emplace_back(0, folded_.floor());
  ranges.insert(ranges.end(), folded_.ranges().begin(), folded_.ranges().end());
  for (const auto& [first, entry] : ranges_) ranges.emplace_back(first, entry.end);
  return ranges;
}

}  // namespace starling::coordinator
