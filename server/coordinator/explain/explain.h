// Why is a job slow or stuck? Pure functions of the evidence: no clock, no state, no I/O.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_EXPLAIN_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_EXPLAIN_H_

#include <vector>

#include "proto/coordinator.pb.h"
#include "server/coordinator/explain/evidence.h"

namespace starling::explain {

// A phase counts as a cause when at least this share of a step goes into it.
inline constexpr double kPhaseShareMin = 0.3;
// A worker is slow when it takes so many times as long for a sample as the median of the others.
inline constexpr double kSlowWorkerRatioMin = 1.5;
// A partition or shard stands out when it takes so many times as long as the median of the others.
inline constexpr double kOutlierRatioMin = 2;
// A worker that has done fewer steps within its window says nothing about speed yet.
inline constexpr uint64_t kUnitsMin = 3;
// Findings of one cause that are told.
inline constexpr int kFindingsPerCauseMax = 3;

// The gravest first; empty: nothing is wrong, or it is too early to say. Causes: causes.h.
std::vector<Finding> Explain(const Evidence& evidence);

// Where the time of a step goes, in the order data, compute, pull, wait, push, idle: medians over
// the members. Empty: too early to say.
std::vector<PhaseShare> Phases(const Evidence& evidence);

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_EXPLAIN_H_
