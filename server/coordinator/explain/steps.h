// Internal to this folder: where the time of a worker's steps goes.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_STEPS_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_STEPS_H_

#include <vector>

#include "server/coordinator/explain/evidence.h"

namespace starling::explain {

// One worker's mean step within its window, in seconds of the wall clock.
struct MeanStep {
  const WorkerEvidence* worker = nullptr;
  double samples = 0;  // of a step
  double data = 0;
  double compute = 0;
  double pull = 0;
  double wait = 0;
  double push = 0;
  double idle = 0;

  double waits() const { return pull + wait + push; }
  double total() const { return data + compute + waits() + idle; }
  // Of a sample: what it took by the worker's own doing.
  double own_per_sample() const { return (data + compute) / samples; }
};

// Of the members that have done kUnitsMin steps within their window.
std::vector<MeanStep> MeanSteps(const Evidence& evidence);

// 0 where there are none.
double Median(std::vector<double> values);
template <typename T, typename Get>
double MedianOf(const std::vector<T>& all, Get get) {
  std::vector<double> values;
  for (const T& one : all) values.push_back(get(one));
  return Median(std::move(values));
}

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_STEPS_H_
