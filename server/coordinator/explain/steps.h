// Internal to this folder: where the time of a worker's steps goes.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_STEPS_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_STEPS_H_

#include <vector>

#include "common/base/median.h"
#include "server/coordinator/explain/evidence.h"

namespace starling::explain {

// A worker's mean step within its window, in seconds of elapsed time.
struct MeanStep {
  const WorkerEvidence* worker = nullptr;
  double samples = 0;  // per step
  double data = 0;
  double compute = 0;
  double pull = 0;
  double wait = 0;
  double push = 0;
  double idle = 0;

  double waits() const { return pull + wait + push; }
  double total() const { return data + compute + waits() + idle; }
  // Seconds per sample for the worker's own work.
  double own_per_sample() const { return (data + compute) / samples; }
};

// One for each member that has done kUnitsMin steps within its window.
std::vector<MeanStep> MeanSteps(const Evidence& evidence);

// 0 for no values.
template <typename T, typename Get>
double MedianOf(const std::vector<T>& all, Get get) {
  std::vector<double> values;
  for (const T& one : all) values.push_back(get(one));
  return Median(std::move(values));
}

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_STEPS_H_
