// Why is a job slow or stuck? Pure functions of the evidence: no clock, no state, no I/O.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_EXPLAIN_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_EXPLAIN_H_

#include <vector>

#include "proto/coordinator.pb.h"
#include "server/coordinator/explain/evidence.h"

namespace starling::explain {

// A phase counts as a cause when it takes at least this share of a step.
inline constexpr double kPhaseShareMin = 0.3;
// A worker is slow when its time per sample is at least this multiple of the others' median.
inline constexpr double kSlowWorkerRatioMin = 1.5;
// A partition or shard is an outlier when its time is at least this multiple of the others' median.
inline constexpr double kOutlierRatioMin = 2;
// A worker with fewer steps in its window is not judged for speed yet.
inline constexpr uint64_t kUnitsMin = 3;
// At most this many findings of one cause are reported.
inline constexpr int kFindingsPerCauseMax = 3;

// Gravest first. Empty: nothing is wrong, or it is too early to tell. Causes: causes.h.
std::vector<Finding> Explain(const Evidence& evidence);

// Where the time of a step goes, in the order data, compute, pull, wait, push, idle: medians over
// the members. Empty: too early to tell.
std::vector<PhaseShare> Phases(const Evidence& evidence);

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_EXPLAIN_H_
