// Which items of an epoch are covered: all below a floor, and some ranges above it.
#ifndef STARLING_COMMON_DATA_PLAN_COVERAGE_H_
#define STARLING_COMMON_DATA_PLAN_COVERAGE_H_

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/container/btree_map.h"

namespace starling {

// Memory and time are proportional to the ranges above the floor, never to the items. Not
// thread-safe.
class Coverage {
 public:
  using Ranges = absl::btree_map<uint64_t, uint64_t>;  // begin -> end

  explicit Coverage(uint64_t items) : items_(items) {}

  // Items beyond the last are not covered.
  bool Has(uint64_t item) const {
    if (item < floor_) return true;
    const auto after = ranges_.upper_bound(item);
    return after != ranges_.begin() && item < std::prev(after)->second;
  }

  // Returns whether `item` was uncovered. `item` < items().
  bool Mark(uint64_t item) {
    if (Has(item)) return false;
    MarkRange(item, item + 1);
    return true;
  }

  // Covers [begin, end), cut at the last item.
  void MarkRange(uint64_t begin, uint64_t end) {
    begin = std::max(begin, floor_);
    end = std::min(end, items_);
    if (begin >= end) return;
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin() && std::prev(it)->second >= begin) --it;
    while (it != ranges_.end() && it->first <= end) {
      begin = std::min(begin, it->first);
      end = std::max(end, it->second);
      above_ -= it->second - it->first;
      it = ranges_.erase(it);
    }
    if (begin == floor_) {
      floor_ = end;
    } else {
      ranges_.emplace(begin, end);
      above_ += end - begin;
    }
  }

  // The first uncovered item at or after `item`; items(): none.
  uint64_t NextUncovered(uint64_t item) const {
    item = std::max(item, floor_);
    const auto after = ranges_.upper_bound(item);
    if (after != ranges_.begin()) item = std::max(item, std::prev(after)->second);
    return std::min(item, items_);
  }
  // The first covered item at or after `item`; items(): none.
  uint64_t NextCovered(uint64_t item) const {
    if (Has(item)) return item;
    const auto after = ranges_.upper_bound(item);
    return after == ranges_.end() ? items_ : after->first;
  }
  // The end of the covered items: none at or after it is covered.
  uint64_t End() const { return ranges_.empty() ? floor_ : ranges_.rbegin()->second; }

  uint64_t items() const { return items_; }
  uint64_t floor() const { return floor_; }  // all items below are covered, this one is not
  uint64_t count() const { return floor_ + above_; }  // covered items
  bool complete() const { return floor_ == items_; }
  const Ranges& ranges() const { return ranges_; }  // above the floor; disjoint, not adjacent

 private:
  uint64_t items_;
  uint64_t floor_ = 0;
  uint64_t above_ = 0;  // items in ranges_
  Ranges ranges_;
};

}  // namespace starling

#endif  // STARLING_COMMON_DATA_PLAN_COVERAGE_H_
