#include "server/coordinator/core/partition_reports.h"

#include "common/base/utf8.h"
#include "common/protocol/limits.h"

namespace starling::coordinator {
namespace {

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// Ranges that make no sense are left out.
Ranges CoveredItems(const PartitionStatus& status, uint64_t items) {
  Ranges ranges;
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

// A status lists at most limits::kCoveredRangesReportedMax ranges.
uint64_t CoverageKnownUpTo(const PartitionStatus& status, uint64_t items) {
  const auto bounds = static_cast<size_t>(status.covered_ranges_size());
  if (bounds < 2 * limits::kCoveredRangesReportedMax) return items;
  return std::min(*status.covered_ranges().rbegin(), items);
}

Ranges Intersection(const Ranges& a, const Ranges& b) {
  Ranges both;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    const uint64_t begin = std::max(i->first, j->first);
    const uint64_t end = std::min(i->second, j->second);
    if (begin < end) both.emplace_back(begin, end);
    i->second < j->second ? ++i : ++j;
  }
  return both;
}

}  // namespace

const PartitionStatus& PartitionReports::Take(const PartitionStatus& status) {
  PartitionStatus& known = statuses_.at(status.partition()).emplace(status);
  std::string& fault = *known.mutable_fault();
  fault.resize(CutUtf8(fault, limits::kFaultBytesMax).size());
  return known;
}

uint64_t PartitionReports::CountCovered(uint32_t epoch, uint64_t items) const {
  uint64_t least = statuses_.empty() ? 0 : items;
  for (const auto& status : statuses_) {
    if (status && status->cut_epochs() > epoch) continue;
    uint64_t count = 0;
    if (status && status->epoch() == epoch) {
      for (const auto& [begin, end] : CoveredItems(*status, items)) count += end - begin;
    }
    least = std::min(least, count);
  }
  return least;
}

std::optional<PartitionReports::Coverage> PartitionReports::CoveredByAll(uint32_t epoch,
                                                                         uint64_t items) const {
  Coverage coverage{{{0, items}}, items};
  for (const auto& status : statuses_) {
    if (!status || status->epoch() != epoch) return std::nullopt;
    coverage.covered = Intersection(coverage.covered, CoveredItems(*status, items));
    coverage.known = std::min(coverage.known, CoverageKnownUpTo(*status, items));
  }
  return coverage;
}

}  // namespace starling::coordinator
