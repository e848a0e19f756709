// What the shards last reported of one job's partitions.
#ifndef STARLING_SERVER_COORDINATOR_CORE_PARTITION_REPORTS_H_
#define STARLING_SERVER_COORDINATOR_CORE_PARTITION_REPORTS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "proto/coordinator.pb.h"

namespace starling::coordinator {

// The last report of each partition, if any, and combinations of all reports. Not thread-safe.
class PartitionReports {
 public:
  PartitionReports() = default;  // no partitions
  // No partition has reported.
  explicit PartitionReports(size_t partitions) : statuses_(partitions) {}

  // The status must name one of the partitions. Shortens the text of a fault.
  const PartitionStatus& Take(const PartitionStatus& status);

  size_t size() const { return statuses_.size(); }
  const std::optional<PartitionStatus>& operator[](size_t p) const { return statuses_[p]; }
  auto begin() const { return statuses_.begin(); }
  auto end() const { return statuses_.end(); }

  // Whether all partitions have reported and `holds` is true for each report.
  template <typename Holds>
  bool All(const Holds& holds) const {
    return std::all_of(begin(), end(),
                       [&](const auto& status) { return status && std::invoke(holds, *status); });
  }
  bool AllReported() const {
    return All([](const PartitionStatus&) { return true; });
  }

  // The maximum of `least` and the reports' values.
  template <typename T, typename Value>
  T Max(T least, const Value& value) const {
    for (const auto& status : statuses_) {
      if (status) least = std::max<T>(least, std::invoke(value, *status));
    }
    return least;
  }

  // How many of the epoch's `items` items every partition covers.
  uint64_t CountCovered(uint32_t epoch, uint64_t items) const;

  struct Coverage {
    std::vector<std::pair<uint64_t, uint64_t>> covered;  // items [first, second), ascending
    uint64_t known = 0;                                  // coverage is unknown from this item on
  };
  // Of the epoch, on all partitions. None: a partition has not reported this epoch.
  std::optional<Coverage> CoveredByAll(uint32_t epoch, uint64_t items) const;

 private:
  std::vector<std::optional<PartitionStatus>> statuses_;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_PARTITION_REPORTS_H_
