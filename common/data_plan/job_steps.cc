#include "common/data_plan/job_steps.h"

#include <algorithm>
#include <limits>

#include "common/protocol/limits.h"

namespace starling {
namespace {

uint64_t CeilDivide(uint64_t a, uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

uint64_t StepsInFullEpoch(const JobSpec& spec, uint64_t samples) {
  return CeilDivide(samples, spec.batch().global());
}

uint64_t JobSteps(const JobSpec& spec, uint64_t samples) {
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  // At most 2^20 epochs of 2^40 steps (limits.h): no overflow.
  const uint64_t by_epochs =
      spec.stop().epochs() == 0 ? kNone : spec.stop().epochs() * StepsInFullEpoch(spec, samples);
  const uint64_t by_steps = spec.stop().steps() == 0 ? kNone : spec.stop().steps();
  return std::min(by_epochs, by_steps);
}

uint32_t JobEpochs(const JobSpec& spec, uint64_t samples) {
  return static_cast<uint32_t>(
      CeilDivide(JobSteps(spec, samples), StepsInFullEpoch(spec, samples)));
}

uint64_t StepsInEpoch(const JobSpec& spec, uint64_t samples, uint32_t epoch) {
  const uint64_t full = StepsInFullEpoch(spec, samples);
  const uint64_t steps = JobSteps(spec, samples);
  const uint64_t before = epoch * full;
  return before >= steps ? 0 : std::min(full, steps - before);
}

bool EvaluatesAt(const JobSpec& spec, uint64_t samples, uint32_t epoch) {
  const uint32_t every = spec.evaluate().every_epochs();
  const uint32_t epochs = JobEpochs(spec, samples);
  if (every == 0 || epoch >= epochs) return false;
  return (epoch + 1) % every == 0 || epoch + 1 == epochs;
}

uint64_t OpenItemsMax(const JobSpec& spec, uint64_t samples) {
  const uint64_t workers = std::max<uint64_t>(1, spec.workers_max());
  return std::min(StepsInFullEpoch(spec, samples), workers * limits::kLeasesPerWorkerMax);
}

}  // namespace starling
