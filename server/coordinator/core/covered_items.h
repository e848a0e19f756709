// What shards say is covered of a job's open epoch.
#ifndef STARLING_SERVER_COORDINATOR_CORE_COVERED_ITEMS_H_
#define STARLING_SERVER_COORDINATOR_CORE_COVERED_ITEMS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "proto/coordinator.pb.h"

namespace starling::coordinator {

// Items [first, second), ascending and disjoint.
using ItemRanges = std::vector<std::pair<uint64_t, uint64_t>>;

// Of the status's epoch, which has `items`. What makes no sense in it is left out.
ItemRanges CoveredItems(const PartitionStatus& status, uint64_t items);

// From this item on the status does not say: a partition names limits::kCoveredRangesReportedMax
// ranges at most.
uint64_t CoverageKnownUpTo(const PartitionStatus& status, uint64_t items);

// What is in both.
ItemRanges Intersection(const ItemRanges& a, const ItemRanges& b);

uint64_t CountItems(const ItemRanges& ranges);

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_COVERED_ITEMS_H_
