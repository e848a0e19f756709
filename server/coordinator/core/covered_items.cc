#include "server/coordinator/core/covered_items.h"

#include <algorithm>

#include "common/protocol/limits.h"

namespace starling::coordinator {

ItemRanges CoveredItems(const PartitionStatus& status, uint64_t items) {
  ItemRanges ranges;
  uint64_t end = std::min<uint64_t>(status.covered_floor(), items);
  if (end > 0) ranges.emplace_back(0, end);
  for (int i = 0; i + 1 < status.covered_ranges_size(); i += 2) {
    const uint64_t begin = std::max(status.covered_ranges(i), end);
    const uint64_t range_end = std::min(status.covered_ranges(i + 1), items);
    if (begin >= range_end) continue;
    ranges.emplace_back(begin, range_end);
    end = range_end;
  }
  return ranges;
}

uint64_t CoverageKnownUpTo(const PartitionStatus& status, uint64_t items) {
  const auto bounds = static_cast<size_t>(status.covered_ranges_size());
  if (bounds < 2 * limits::kCoveredRangesReportedMax) return items;
  return std::min(*status.covered_ranges().rbegin(), items);
}

ItemRanges Intersection(const ItemRanges& a, const ItemRanges& b) {
  ItemRanges both;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    const uint64_t begin = std::max(i->first, j->first);
    const uint64_t end = std::min(i->second, j->second);
    if (begin < end) both.emplace_back(begin, end);
    i->second < j->second ? ++i : ++j;
  }
  return both;
}

uint64_t CountItems(const ItemRanges& ranges) {
  uint64_t count = 0;
  for (const auto& [begin, end] : ranges) count += end - begin;
  return count;
}

}  // namespace starling::coordinator
